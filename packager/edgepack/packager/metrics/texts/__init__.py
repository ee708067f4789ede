"""What a reader reads, beside what the float model reads."""
