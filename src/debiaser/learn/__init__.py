"""Tools for training: networks, losses, one training loop, one pass over the data, scores, sampling, checkpoints."""
