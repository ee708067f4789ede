"""Telemetry of inferences, from the applications to the agent and on to the fleet."""
