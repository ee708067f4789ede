"""The outputs that tell what a model is for."""

from edgepack.packager.tensors.detections import DetectionHead
from edgepack.packager.tensors.texts import TextHead

Head = DetectionHead | TextHead
"""Each has its `outputs`."""
