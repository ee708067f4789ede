"""The bundle format: manifest, chunk index, golden samples, signature and archive."""
