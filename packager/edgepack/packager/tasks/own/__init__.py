"""Describes outputs of which the user's own function decides."""
