"""Firmware hooks: finding them, running them, and what their answers mean."""
