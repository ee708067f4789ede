"""The daemon on the device, and the way applications use its model."""

from edgepack.agent.serving.model import open_model

__all__ = ["open_model"]
