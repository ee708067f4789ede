"""Where a bundle came from and what is in it: its provenance and its bill of materials."""
