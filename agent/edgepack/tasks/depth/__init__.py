"""Evaluates maps of distances."""
