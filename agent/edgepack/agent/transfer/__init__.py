"""Chunks on their way into a slot: missing chunks, and the times of requests."""
