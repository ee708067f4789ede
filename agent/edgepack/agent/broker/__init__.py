"""The agent's side of the broker: connection, received messages, reports."""
