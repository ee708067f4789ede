"""Profiles: read from TOML, checked for contradictions; the chips that they name."""
