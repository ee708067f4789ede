"""Tensors: sequences of samples, meanings, specs and observations."""
