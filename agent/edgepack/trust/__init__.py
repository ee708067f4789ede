"""Trust as TUF metadata: fleets write, and devices evaluate metadata."""
