"""How near two outputs are, and what an output means."""
