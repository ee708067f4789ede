"""`edgepack build` itself: its steps, in order."""
