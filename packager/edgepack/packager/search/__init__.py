"""The search: which candidate of one profile is the cheapest that stays near the float model."""
