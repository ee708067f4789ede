"""Sounds: reading, rate and log-mel features, as a model of speech takes them."""
