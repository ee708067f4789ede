"""Trust as TUF metadata: fleets write it, and devices evaluate it."""
