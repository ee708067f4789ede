"""Evaluates sound to listen to."""
