"""`edgepack compare`: differences between two bundles or reports."""
