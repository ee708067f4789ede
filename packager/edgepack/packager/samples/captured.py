"""Samples that devices captured, in addition to the given samples.

Captured samples are only for ranges: candidates are chosen and evaluated on given samples, so that
the verdicts of two releases can be compared, and unchecked inputs decide nothing. For an evaluation
on captured samples, give the samples as `--evaluation`.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from edgepack.text import counted


class CapturedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Captured samples that were added.

    Attributes:
        count: Number of samples, without given samples and duplicates.
        sha256: Digest over the samples in order, hex; "" without samples.
    """

    count: int = 0
    sha256: str = ""

    @property
    def note(self) -> str:
        """Note for a person, as a sentence."""
        return (
            f"{counted(self.count, 'sample')} that devices captured were added to those for "
            f"ranges, sha256:{self.sha256[:12]}."
        )


def add_captured(
    split: SampleSplit, given: Sequence[OpenedSamples], captured: Sequence[OpenedSamples]
) -> tuple[SampleSplit, CapturedSamples]:
    """Add captured samples to the samples for ranges.

    Args:
        split: The given samples, divided.
        given: All given samples; a captured duplicate stays only in its part.
        captured: Of each place.

    Returns:
        The split, and the added samples.

    Raises:
        BuildError: A sample is a step of a sequence, which is meaningless without the steps before.
    """
    known = {digest for opened in given for digest in opened.digests}
    added: list[tuple[Samples, int]] = []
    digest = hashlib.sha256()
    for opened in captured:
        if opened.samples.states or opened.samples.decoder is not None:
            raise BuildError(
                "captured samples are single steps, and this model carries states from one to the "
                "next",
                found_in=opened.samples.source,
                remedy="leave --captured out, and record whole sequences for --calibration",
            )
        for index, one in enumerate(opened.digests):
            if one not in known:
                known.add(one)
                digest.update(one)
                added.append((opened.samples, index))
    if not added:
        return split, CapturedSamples()
    calibration = split.calibration.extend(added)
    told = CapturedSamples(count=len(added), sha256=digest.hexdigest())
    both = hashlib.sha256(f"{split.sha256} {told.sha256}".encode()).hexdigest()
    return replace(split, calibration=calibration, sha256=both), told
