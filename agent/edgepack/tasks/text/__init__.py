"""Evaluates text that a model reads."""
