"""Remaining memory after swaps of an equal model."""
