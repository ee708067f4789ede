"""Evaluates vectors that are compared with each other."""
