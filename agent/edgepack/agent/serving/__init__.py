"""The active model in use: opened by applications, and the latency of what they ask."""
