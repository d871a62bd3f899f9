"""The reproduction of the paper: settings, runs, stored results, metrics, published numbers."""
