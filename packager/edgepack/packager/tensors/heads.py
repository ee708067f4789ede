"""The outputs that tell what a model is for."""

from edgepack.tasks.detections.layouts import DetectionHead
from edgepack.tasks.text.head import TextHead

Head = DetectionHead | TextHead
"""Each has its `outputs`."""
