"""From prepared variants to a signed and rehearsed bundle."""
