"""Depot: sends each chunk once for many devices, at the devices' pace."""
