"""Auditing a person's own data: which property of the inputs the model follows, and how sure one can be."""
