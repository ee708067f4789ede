"""Evaluates the tokens that a decoder chooses."""
