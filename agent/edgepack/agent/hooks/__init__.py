"""Firmware hooks: search, execution, and interpretation of answers."""
