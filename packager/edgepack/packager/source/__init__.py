"""The source model: reading it, checking it, fixing its shapes."""
