"""Evaluation of maps with summed values, for example densities that give a count."""
