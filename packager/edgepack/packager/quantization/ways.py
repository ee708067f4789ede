"""The words for a way to quantize statically: `[preparation + ]range[, bias corrected]`.

"minmax", "cross-layer + mse" and "smooth + minmax, bias corrected" are ways.
"""

from collections.abc import Collection
from dataclasses import dataclass

from edgepack.packager.profile.pass_settings import Quantize

_JOINT = " + "
_CORRECTED = ", bias corrected"
_RANGES_WITH_PREPARATION = 2
"""A preparation costs a calibration of its own, so only the profile's first ranges try it."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to quantize.

    Attributes:
        preparation: What is done to the float model first, or "".
        ranges: The calibration method.
        is_bias_corrected: Whether biases make up for the mean error of each channel.
    """

    preparation: str = ""
    ranges: str
    is_bias_corrected: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether nothing but ranges is chosen: it needs neither preparation nor correction."""
        return not self.preparation and not self.is_bias_corrected

    @property
    def words(self) -> str:
        """The way as people read it; `parse_way` takes them back."""
        before = f"{self.preparation}{_JOINT}" if self.preparation else ""
        return f"{before}{self.ranges}{_CORRECTED if self.is_bias_corrected else ''}"


def parse_way(words: str) -> Way:
    """The way that `Way.words` told of."""
    rest = words.removesuffix(_CORRECTED)
    preparation, joint, ranges = rest.rpartition(_JOINT)
    return Way(
        preparation=preparation if joint else "",
        ranges=ranges,
        is_bias_corrected=rest != words,
    )


def list_ways(settings: Quantize, preparations: Collection[str]) -> tuple[Way, ...]:
    """Every way that a profile asks for, in the order to try: plain ranges first.

    Args:
        settings: The profile's quantize pass.
        preparations: Those of `settings.prepare` that this model gives occasion for.

    Returns:
        The ways, each once.
    """
    few = settings.ranges[:_RANGES_WITH_PREPARATION]
    ways = [Way(ranges=ranges) for ranges in settings.ranges]
    ways += [
        Way(preparation=preparation, ranges=ranges)
        for preparation in settings.prepare
        if preparation in preparations
        for ranges in few
    ]
    if settings.bias_correction == "try":
        ways += [
            Way(preparation=way.preparation, ranges=way.ranges, is_bias_corrected=True)
            for way in ways
            if way.ranges in few
        ]
    return tuple(dict.fromkeys(ways))
