"""The agent's side of the broker: the connection, what comes, what is reported."""
