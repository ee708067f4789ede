"""Rewrites of the pass `apply_workarounds`, a file for each kind."""
