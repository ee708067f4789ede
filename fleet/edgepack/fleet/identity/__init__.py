"""Certificates of devices: what is issued to whom, once or again, and what ends."""
