"""The releases that the fleet holds: checked bundles on disk, and their chunks."""
