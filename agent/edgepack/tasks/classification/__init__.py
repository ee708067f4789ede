"""Evaluation of outputs with a winning class."""
