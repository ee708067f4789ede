"""Evaluates what a model selects, in any order."""
