"""Thirty kinds of tasks: a build's reported accuracy, compared with the truth on fresh data."""
