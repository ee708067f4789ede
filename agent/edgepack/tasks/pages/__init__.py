"""Pages: lines of text with their boxes."""
