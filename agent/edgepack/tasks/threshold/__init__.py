"""Evaluates scores that are held against a threshold, each for itself."""
