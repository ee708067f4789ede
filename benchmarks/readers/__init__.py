"""Lines that a text recognizer is expected to lose, beside the lines that it does lose."""
