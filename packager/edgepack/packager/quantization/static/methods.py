"""The methods of static quantization that a profile asks for, in the order to try."""

from collections.abc import Collection

from msgspec.structs import replace

from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.quantization.method import QuantizationMethod

_RANGES_WITH_PREPARATION = 2
"""A preparation costs a calibration of its own, so only the profile's first ranges try it."""


def plain_methods(settings: Quantize) -> tuple[QuantizationMethod, ...]:
    """Return methods that leave the float model unchanged: calibration methods, then GPTQ."""
    methods = [QuantizationMethod(base=ranges) for ranges in settings.ranges]
    if settings.weight_rounding == "gptq":
        methods.append(QuantizationMethod(base=settings.ranges[0], has_gptq_weights=True))
    return tuple(dict.fromkeys(methods))


def costly_methods(
    settings: Quantize, preparations: Collection[str]
) -> tuple[QuantizationMethod, ...]:
    """Return methods that prepare the float model or correct its biases.

    Args:
        settings: The profile's quantize pass.
        preparations: Preparations of `settings.prepare` that this model is suited for.
    """
    few = [QuantizationMethod(base=ranges) for ranges in settings.ranges[:_RANGES_WITH_PREPARATION]]
    methods = [
        replace(method, preparation=preparation)
        for preparation in settings.prepare
        if preparation in preparations
        for method in few
    ]
    if settings.bias_correction == "try":
        methods += [replace(method, has_corrected_biases=True) for method in (*few, *methods)]
    return tuple(dict.fromkeys(methods))
