"""Evaluates accuracy: what outputs of a model mean, and how near another model comes to it."""
