"""`edgepack.toml`: what a model's inputs are and how to build it, declared once."""
