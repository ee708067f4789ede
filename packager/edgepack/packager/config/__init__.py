"""`edgepack.toml`: a model's inputs and build settings, declared once."""
