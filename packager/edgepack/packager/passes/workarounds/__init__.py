"""What the pass `apply_workarounds` writes otherwise, a file for each kind."""
