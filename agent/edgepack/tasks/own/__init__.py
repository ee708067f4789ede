"""Evaluates outputs of which the user's own function decides at the build."""
