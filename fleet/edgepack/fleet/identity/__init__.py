"""Certificates of devices: what is issued to whom, once or anew, and what ends."""
