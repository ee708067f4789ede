"""Cost of a rollout to many devices for the controller, as JSON and as a table."""
