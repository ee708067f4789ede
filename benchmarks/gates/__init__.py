"""Operating curves of gates, from simulated rollouts."""
