"""Evidence for the numbers that decide verdicts: their list and their effect."""
