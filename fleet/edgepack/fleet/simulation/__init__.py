"""Simulated devices that speak the real protocol."""
