"""Conversion to 16-bit floats."""
