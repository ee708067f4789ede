"""Recognizes anomaly scores."""
