"""The watch: evidence about a serving release, during its soak and for as long as it serves."""
