"""Rollouts: the rules, the waves, and their state in the database."""
