"""Evaluation of a model's selection, in any order."""
