"""Evaluates pictures to look at."""
