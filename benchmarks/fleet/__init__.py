"""What a rollout to many devices costs the controller, as JSON and as a table."""
