"""Evaluates anomaly scores."""
