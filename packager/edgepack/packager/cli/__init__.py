"""What a terminal shows: commands, options, progress and tables."""
