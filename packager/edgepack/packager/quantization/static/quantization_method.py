"""The words for a way to quantize statically: `[preparation + ]range[, correction]`.

"minmax", "minmse, weights rounded by GPTQ", "cross-layer + mse" and
"smooth + minmax, bias corrected"
are ways.
"""

from collections.abc import Collection

import msgspec

from edgepack.packager.profiles.pass_settings import Quantize

_JOINT = " + "
_CORRECTED = ", bias corrected"
_BY_GPTQ = ", weights rounded by GPTQ"
_RANGES_WITH_PREPARATION = 2
"""A preparation costs a calibration of its own, so only the profile's first ranges try it."""


class QuantizationMethod(msgspec.Struct, frozen=True, kw_only=True):
    """One way to quantize.

    Attributes:
        preparation: What is done to the float model first, or "".
        ranges: The calibration method.
        is_bias_corrected: Whether biases make up for the mean error of each channel.
        is_gptq: Whether weights are rounded so that they make up for each other's errors.
    """

    preparation: str = ""
    ranges: str
    is_bias_corrected: bool = False
    is_gptq: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the float model stays as it is: neither preparation nor correction."""
        return not self.preparation and not self.is_bias_corrected

    @property
    def words(self) -> str:
        """The way as people read it; `parse_method` takes them back."""
        before = f"{self.preparation}{_JOINT}" if self.preparation else ""
        after = _BY_GPTQ if self.is_gptq else ""
        return f"{before}{self.ranges}{after}{_CORRECTED if self.is_bias_corrected else ''}"


def parse_method(words: str) -> QuantizationMethod:
    """The way that `QuantizationMethod.words` told of."""
    rest = words.removesuffix(_CORRECTED)
    preparation, joint, rounded = rest.rpartition(_JOINT)
    ranges = rounded.removesuffix(_BY_GPTQ)
    return QuantizationMethod(
        preparation=preparation if joint else "",
        ranges=ranges,
        is_bias_corrected=rest != words,
        is_gptq=rounded != ranges,
    )


def list_methods(
    settings: Quantize, preparations: Collection[str]
) -> tuple[QuantizationMethod, ...]:
    """Every way that a profile asks for, in the order to try: plain ranges first.

    Args:
        settings: The profile's quantize pass.
        preparations: Those of `settings.prepare` that this model gives occasion for.

    Returns:
        The ways, each once.
    """
    few = settings.ranges[:_RANGES_WITH_PREPARATION]
    ways = [QuantizationMethod(ranges=ranges) for ranges in settings.ranges]
    if settings.weight_rounding == "gptq":
        ways.append(QuantizationMethod(ranges=settings.ranges[0], is_gptq=True))
    ways += [
        QuantizationMethod(preparation=preparation, ranges=ranges)
        for preparation in settings.prepare
        if preparation in preparations
        for ranges in few
    ]
    if settings.bias_correction == "try":
        ways += [
            QuantizationMethod(
                preparation=way.preparation, ranges=way.ranges, is_bias_corrected=True
            )
            for way in ways
            if way.ranges in few and not way.is_gptq
        ]
    return tuple(dict.fromkeys(ways))
