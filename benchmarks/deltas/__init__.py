"""Bytes on the wire of a model's update, by kind of change and form of transfer."""
