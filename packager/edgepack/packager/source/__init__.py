"""The source model: reading, checks, fixed shapes."""
