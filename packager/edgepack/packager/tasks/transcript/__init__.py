"""Recognizes texts of tokens, and the words of a vocabulary."""
