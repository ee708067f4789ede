"""Evaluates quantities: regression, forecasts."""
