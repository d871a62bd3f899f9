"""Data to learn from: splits that yield whole batches, benchmarks, augmentation, raw files, and your own data."""
