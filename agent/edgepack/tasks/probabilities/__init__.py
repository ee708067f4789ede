"""Evaluates probabilities that are held against a threshold."""
