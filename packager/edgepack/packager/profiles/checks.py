"""Contradictory settings of a profile, each with the reason.

This module knows no provider by name; a target's abilities are its own settings.
"""

import re
from collections.abc import Iterator

from edgepack.errors import ProfileError
from edgepack.packager.profiles.calibration_methods import POWER_OF_TWO_METHODS, is_known_method
from edgepack.packager.profiles.option_checks import (
    Contradiction,
    check_optimization,
    check_options,
)
from edgepack.packager.profiles.pass_settings import (
    WIDE_TYPES,
    Clean,
    FixShapes,
    Lowering,
    Quantize,
    QuantizeWeights,
)
from edgepack.packager.profiles.schema import ANY, Profile
from edgepack.packager.wording import toml_key
from edgepack.tasks.table import TASKS

_EXPLICIT = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool"})
"""Operators whose defaults can be written out, see `graph.explicit_attributes`."""

_FIRST_OPSET_WITH_16_BIT = 21
_FIRST_OPSET_WITH_PER_CHANNEL = 13


def check_consistency(profile: Profile, source: str) -> None:
    """Reject a profile with contradictory settings.

    Args:
        profile: The resolved profile.
        source: Its file, for the message.

    Raises:
        ProfileError: The first contradiction that was found.
    """
    for found in (
        *_check_name(profile),
        *_check_passes(profile),
        *check_optimization(profile),
        *_check_limits(profile),
        *_check_budgets(profile),
    ):
        raise ProfileError(
            f"profile '{profile.name}' contradicts itself: {found.problem}",
            found_in=f"{source}, {found.place}",
            remedy=found.remedy,
        )
    for found in check_options(profile):
        raise ProfileError(
            f"profile '{profile.name}' has unused settings: {found.problem}",
            found_in=f"{source}, {found.place}",
            remedy=found.remedy,
        )


def _check_budgets(profile: Profile) -> Iterator[Contradiction]:
    """Find budgets of tasks that there are not."""
    known = (ANY, *TASKS)
    for name in profile.gates.accuracy:
        if name not in known:
            yield Contradiction(
                f"gates.accuracy.{toml_key(name)}",
                f"there is no task {name!r}",
                f"[gates.accuracy.TASK] with one of {', '.join(known)}",
            )


def _check_name(profile: Profile) -> Iterator[Contradiction]:
    """Yield a variant has its profile's name, and that is a folder in the bundle."""
    name = profile.about.name
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", name):
        yield Contradiction(
            "profile.name",
            f"{name!r} can be no variant's name",
            "at most 100 of the characters A-Z a-z 0-9 . _ -, the first no point",
        )


def _check_passes(profile: Profile) -> Iterator[Contradiction]:
    lowerings = [entry for entry in profile.passes if isinstance(entry, Lowering)]
    if not lowerings:
        return
    tags = [str(type(entry).__struct_config__.tag) for entry in lowerings]
    if len(tags) > 1:
        yield Contradiction(
            "pass", f"{' and '.join(tags)} both lower the precision", "keep one of them"
        )
    lowering, tag = lowerings[-1], tags[-1]
    if profile.passes[-1] is not lowering:
        yield Contradiction(
            "pass", f"a pass follows {tag} and would undo its types", f"put {tag} last"
        )
    if profile.provider.quantizes:
        yield Contradiction(
            "provider.quantizes",
            f"the provider quantizes by itself, and the recipe has a {tag} pass too",
            "remove one of them",
        )
    if isinstance(lowering, Quantize):
        yield from _check_quantize(lowering, _opset(profile))
    if isinstance(lowering, QuantizeWeights):
        yield from _check_weights(lowering)


def _check_weights(weights: QuantizeWeights) -> Iterator[Contradiction]:
    place = "pass[quantize_weights]"
    if not weights.methods:
        yield Contradiction(f"{place}.methods", "no way to round is named", "methods = ['rtn']")
    if "hqq" in weights.methods and weights.symmetric:
        yield Contradiction(
            f"{place}.methods",
            "hqq moves zero points, and symmetric weights have none to move",
            "symmetric = false, or methods without hqq",
        )


def _check_quantize(quantize: Quantize, opset: int) -> Iterator[Contradiction]:
    place = "pass[quantize]"
    if quantize.scales == "power_of_two":
        if quantize.per_channel:
            yield Contradiction(
                f"{place}.per_channel",
                "power-of-two scales are one per tensor",
                "per_channel = []",
            )
        if not (quantize.activation_symmetric and quantize.weight_symmetric):
            yield Contradiction(
                f"{place}.scales",
                "power-of-two scales need symmetric activations and weights",
                "activation_symmetric = true and weight_symmetric = true",
            )
        if quantize.fixed_scales:
            yield Contradiction(
                f"{place}.fixed_scales",
                "the scales are searched as powers of two, so none is fixed",
                "fixed_scales = false",
            )
    if quantize.backend == "quark":
        yield from _check_quark(quantize)
    is_too_old = opset < _FIRST_OPSET_WITH_16_BIT and quantize.qdq_domain == "onnx"
    for key, dtype in (
        ("activations", quantize.activations),
        ("high_precision_activations", quantize.high_precision_activations),
    ):
        if is_too_old and dtype in WIDE_TYPES:
            yield Contradiction(
                f"{place}.{key}",
                f"{dtype} needs opset 21 or the com.microsoft domain, and the opset is {opset}",
                "qdq_domain = 'auto', or [[pass]] clean with opset = 21",
            )
    if quantize.per_channel and opset < _FIRST_OPSET_WITH_PER_CHANNEL:
        yield Contradiction(
            f"{place}.per_channel",
            f"scales per channel need opset 13, and the opset is {opset}",
            "[[pass]] clean with opset = 13 or more",
        )
    if quantize.ops == "all" and quantize.output_ops:
        yield Contradiction(
            f"{place}.output_ops",
            "with ops = 'all' every output is quantized",
            "remove output_ops, or ops = 'compute'",
        )
    for method in quantize.ranges:
        if not is_known_method(method):
            yield Contradiction(
                f"{place}.ranges",
                f"'{method}' is not a calibration method",
                "minmax, mse, entropy or percentile-P, 50 < P < 100; nonoverflow or minmse",
            )
        if method in POWER_OF_TWO_METHODS and quantize.scales != "power_of_two":
            yield Contradiction(
                f"{place}.ranges",
                f"'{method}' is for power-of-two scales",
                f"{POWER_OF_TWO_METHODS[method]}, which is the same for any scale",
            )
    if not quantize.ranges:
        yield Contradiction(f"{place}.ranges", "no calibration method is named", "minmax")


def _check_quark(quantize: Quantize) -> Iterator[Contradiction]:
    """Yield Quark's configurations for AMD's NPUs: XINT8, A8W8, A16W8."""
    is_xint8 = quantize.scales == "power_of_two"
    if quantize.high_precision_activations:
        yield Contradiction(
            "pass[quantize].high_precision_activations",
            "AMD Quark's configurations have one type of activations",
            "high_precision_activations = '', or backend = 'edgepack'",
        )
    is_symmetric = quantize.activation_symmetric and quantize.weight_symmetric
    if quantize.per_channel or not is_symmetric or quantize.ops != "all":
        yield Contradiction(
            "pass[quantize].backend",
            "AMD Quark quantizes the whole graph, symmetric, with one scale per tensor",
            "extends one of the vitisai profiles, or backend = 'edgepack'",
        )
    elif not is_xint8 and quantize.activations not in ("int8", "int16"):
        yield Contradiction(
            "pass[quantize].backend",
            f"AMD Quark has no configuration with float scales and {quantize.activations}",
            "activations = 'int8' or 'int16', or backend = 'edgepack'",
        )


def _check_limits(profile: Profile) -> Iterator[Contradiction]:
    limits = profile.limits
    if limits.opset_min > limits.opset_max:
        yield Contradiction("limits", "opset_min is above opset_max", "swap them")
    opset = _opset(profile)
    if not limits.opset_min <= opset <= limits.opset_max:
        yield Contradiction(
            "limits",
            f"clean raises the opset to {opset}, outside {limits.opset_min}…{limits.opset_max}",
            "change pass[clean].opset or the limits",
        )
    for op_type in limits.forbidden_because.keys() - set(limits.forbidden_ops):
        yield Contradiction(
            "limits.forbidden_because",
            f"it gives a reason for {op_type}, which is not forbidden",
            f"add {op_type} to limits.forbidden_ops, or remove the reason",
        )
    for op_type in set(limits.explicit_attributes) - _EXPLICIT:
        yield Contradiction(
            "limits.explicit_attributes",
            f"{op_type} is not a convolution or pooling",
            f"leave only {', '.join(sorted(_EXPLICIT))}",
        )
    fixes = any(isinstance(entry, FixShapes) for entry in profile.passes)
    if limits.static_shapes and not fixes:
        yield Contradiction(
            "limits.static_shapes",
            "shapes must be static, but no pass fixes them",
            "[[pass]] name = 'fix_shapes' before infer_shapes",
        )
    if profile.device.type == "npu" and profile.quantize and not limits.static_shapes:
        yield Contradiction(
            "limits.static_shapes",
            "an NPU runs quantized graphs of static shapes only",
            "static_shapes = true",
        )
    compile_ = profile.compile
    if compile_.enabled and not (compile_.soc_model or compile_.htp_arch):
        yield Contradiction(
            "compile",
            "compiling ahead of time needs a chip to compile for",
            "name soc_model or htp_arch",
        )


def _opset(profile: Profile) -> int:
    for entry in profile.passes:
        if isinstance(entry, Clean):
            return entry.opset
    return profile.limits.opset_min
