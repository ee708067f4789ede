"""Bundles at rest elsewhere: in an OCI registry, or as an archive on a web server."""
