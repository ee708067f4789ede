"""The agent as a service of the system: unit, users and folders."""
