"""The paper as software: settings, runs, the store of results, metrics, published numbers."""
