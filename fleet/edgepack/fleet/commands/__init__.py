"""The commands of the fleet, over its API."""
