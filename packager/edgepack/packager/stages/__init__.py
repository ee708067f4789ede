"""Build of pipelines: models of several graphs in one bundle."""
