"""What we learn from: splits that hand out whole batches, benchmarks, augmentation, raw files, own data."""
