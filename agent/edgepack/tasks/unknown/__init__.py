"""Evaluates outputs of unknown meaning."""
