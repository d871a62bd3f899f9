"""Audits of your own data: which property of the inputs a model relies on, and how certain that is."""
