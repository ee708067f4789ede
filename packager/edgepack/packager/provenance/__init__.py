"""Origin and content of a bundle: its provenance and its bill of materials."""
