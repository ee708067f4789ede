"""The agent as a process that runs for ever."""
