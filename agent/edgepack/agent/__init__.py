"""The daemon on the device, and the way applications use its model."""
