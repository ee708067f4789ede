"""Programs that show edgepack at work."""
