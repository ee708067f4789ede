"""Samples: read from plain files, checked against the model, divided, chosen as golden."""
