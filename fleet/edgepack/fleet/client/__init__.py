"""Asking a running fleet, from Python: `FleetClient`."""
