"""`edgepack compare`: what differs between two bundles or reports."""
