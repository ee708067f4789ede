"""Cases whose right answer is known, by question."""
