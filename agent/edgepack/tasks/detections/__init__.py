"""Evaluation of a detector's findings."""
