"""Doubts: where a verdict says little of the task."""
