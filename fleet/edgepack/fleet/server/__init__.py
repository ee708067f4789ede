"""The running fleet: its parts put together, and its HTTP API."""
