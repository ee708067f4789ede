"""Evaluates maps whose values are summed, such as densities that give a count."""
