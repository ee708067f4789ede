"""Measurements inside a model: errors of layers, ranges of tensors, and chains of inferences."""
