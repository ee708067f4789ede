"""Terminal interface: commands, options, progress and tables."""
