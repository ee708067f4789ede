"""The agent's side of the wire: the connection, and what goes over it."""
