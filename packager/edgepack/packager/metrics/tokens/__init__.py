"""Comparison of a decoder with the float model, token by token."""
