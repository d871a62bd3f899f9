"""The benchmarks: one file per family, each with `load(...) -> Benchmark`."""
