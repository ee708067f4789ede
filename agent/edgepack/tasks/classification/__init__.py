"""Evaluates outputs of which one class wins."""
