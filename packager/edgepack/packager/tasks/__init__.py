"""Recognizes the tasks of a model's outputs, by declarations, graph, metadata and values."""
