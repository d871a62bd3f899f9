"""The tools of training: networks, losses, objectives, one loop, one look, scores, sampling, checkpoints."""
