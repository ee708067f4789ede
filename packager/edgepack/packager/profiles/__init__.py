"""Profiles: TOML files, checked for contradictions, and their chips."""
