"""The search: the cheapest candidate of a profile that stays near the float model."""
