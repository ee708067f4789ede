"""What may be installed and who says so, as TUF metadata: what fleets write and devices judge."""
