"""Chunks on their way into a slot: what is missing, and when to ask for it."""
