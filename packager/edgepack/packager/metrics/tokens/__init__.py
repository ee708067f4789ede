"""What a decoder says, token after token, beside what the float model says."""
