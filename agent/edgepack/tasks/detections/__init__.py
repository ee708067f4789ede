"""Evaluates what a detector finds."""
