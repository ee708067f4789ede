"""Thirty kinds of tasks: the accuracy that a build reports beside the truth on fresh data."""
