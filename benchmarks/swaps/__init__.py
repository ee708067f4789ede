"""What remains in memory after swaps of an equal model."""
