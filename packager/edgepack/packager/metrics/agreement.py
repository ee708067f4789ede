"""What is measured where it is known what a model is for, beside the distance of its outputs."""

from edgepack.tasks.detections.agreement import DetectionAgreement
from edgepack.tasks.text.agreement import TextAgreement
from edgepack.tasks.tokens.agreement import TokenAgreement

Agreement = DetectionAgreement | TextAgreement | TokenAgreement
"""Each has a `value` that is held against a budget, and its lower bound `low`."""
