"""Updates of the agent itself: environments side by side, and a launcher."""
