"""Boards that prove variants over ssh: address, connection, files, requests."""
