"""Cost of telemetry on a device: time of inferences, writes and flushes of the agent."""
