"""Boxes with scores and classes: overlap, suppression, and pairs of two sets."""

import msgspec
import numpy as np

from edgepack.tasks.arrays import Floats, Integers, Tensor

_SUPPRESSED_FROM = 0.45
"""Intersection over union from which the box with the lower score goes; as YOLOv5 and YOLOX do."""

_MOST = 1000
"""Boxes of a picture that are looked at, the best ones."""

_PAIRED_FROM = 0.75
"""Intersection over union from which two boxes are the same: the strict one of COCO (AP75). A text
detector whose boxes were off by a pixel or two found 1.5 % fewer of the lines that had been drawn:
.7 % by this measure at an overlap of .5, .9 % at .75."""


class Boxes(msgspec.Struct, frozen=True, kw_only=True):
    """Boxes found in a sample, in any order.

    Attributes:
        corners: (n, 4): left, top, right, bottom, in any unit.
        scores: (n,), 0…1.
        classes: (n,); the class also distinguishes pictures of a batch.
    """

    corners: Floats
    scores: Floats
    classes: Integers

    def __len__(self) -> int:
        return len(self.scores)

    def pick(self, which: Tensor) -> "Boxes":
        """Return some of the boxes."""
        return Boxes(
            corners=self.corners[which], scores=self.scores[which], classes=self.classes[which]
        )


NONE = Boxes(corners=np.zeros((0, 4)), scores=np.zeros(0), classes=np.zeros(0, np.int64))


def overlaps(one: Boxes, other: Boxes) -> Floats:
    """Return intersection over union of all pairs, 0 if classes differ: (len(one), len(other))."""
    a, b = one.corners[:, None], other.corners[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.prod(np.maximum(sides, 0.0), axis=-1)
    whole = _areas(one)[:, None] + _areas(other)[None] - common
    shares: Floats = np.divide(common, whole, out=np.zeros_like(common), where=whole > 0.0)
    shares[one.classes[:, None] != other.classes[None]] = 0.0
    return shares


def suppress(found: Boxes) -> Boxes:
    """Return the box with the highest score of each object (non-maximum suppression)."""
    found = found.pick(np.argsort(-found.scores, kind="stable")[:_MOST])
    covers = overlaps(found, found) >= _SUPPRESSED_FROM
    is_left = np.ones(len(found), np.bool_)
    for index in range(len(found)):
        if is_left[index]:
            is_left[index + 1 :] &= ~covers[index, index + 1 :]
    return found.pick(is_left)


def pair(one: Boxes, other: Boxes) -> tuple[Integers, Integers]:
    """Match boxes of the same object in both, each in at most 1 pair; high scores first.

    So the pairs with both scores above a threshold are the pairs of all boxes above the threshold.
    """
    near = np.argwhere(overlaps(one, other) >= _PAIRED_FROM)
    scores = np.minimum(one.scores[near[:, 0]], other.scores[near[:, 1]])
    first, second = set[int](), set[int]()
    pairs = []
    for i, j in near[np.argsort(-scores, kind="stable")].tolist():
        if i not in first and j not in second:
            first.add(i)
            second.add(j)
            pairs.append((i, j))
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _areas(boxes: Boxes) -> Floats:
    sides = np.maximum(boxes.corners[:, 2:] - boxes.corners[:, :2], 0.0)
    return np.asarray(np.prod(sides, axis=-1))
