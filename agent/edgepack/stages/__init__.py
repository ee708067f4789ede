"""Pipelines: models of several graphs, with steps on the host between the graphs."""
