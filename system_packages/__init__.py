"""Packages of the agent for operating systems: `.deb` files and an image for containers."""
