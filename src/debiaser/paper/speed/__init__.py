"""What our speed claims rest on: each thing beside its alternatives, measured in one run, in turns, as ratios."""
