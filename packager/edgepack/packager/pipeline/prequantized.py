"""Handling of a quantized source model, which keeps its own scales.

A model with quantized weights alone is a float model for targets of integers: see `unfold`.

The model is evaluated like any variant, against itself computed with its Quantize/DequantizeLinear
pairs unchanged. Differences from the profile's own recipe are notes: the placement shows whether
the provider takes the model all the same.
"""

from collections.abc import Iterator, Sequence

import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.errors import BuildError
from edgepack.packager.graph.saturation import EXACT_SUMS, may_saturate
from edgepack.packager.graph.source_quantization import (
    SourceQuantization,
    read_source_quantization,
)
from edgepack.packager.profiles.pass_settings import Quantize, QuantizeDynamic
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.quantization.weight_only.unfold import unfold_weights
from edgepack.packager.search.combinations import Combination
from edgepack.packager.source.model import SourceModel
from edgepack.packager.wording import some_of
from edgepack.text import counted

_MOST_NAMED = 3

_BITS_OF_INTEGERS = 8
"""Of the weights that profiles compute with."""


def unfold(model: onnx.ModelProto, profile: Profile) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the float model that a profile prepares in place of a model with quantized weights
    alone.

    Where its activations stay floats, a target of integers gets no integers to compute with. If the
    profile publishes floats too, wider weights would only grow the file: narrower weights stay.

    Returns:
        The float model and a note; the model unchanged if its activations are quantized, or if the
        profile accepts quantized weights.
    """
    own = read_source_quantization(model.graph)
    if own is None or not own.is_of_weights:
        return model, ()
    wants_integers = profile.provider.quantizes or (
        isinstance(profile.lowering, Quantize | QuantizeDynamic)
        and (not profile.gates.float_instead or own.weight_bits >= _BITS_OF_INTEGERS)
    )
    floats = unfold_weights(model) if wants_integers else None
    if floats is None:
        return model, ()
    otherwise = ", or published as it came" if profile.gates.float_instead else ""
    return floats, (
        f"The weights alone come quantized ({own.precision}): the float model that they stand for "
        f"is prepared like any other{otherwise}.",
    )


def check_own_scales(own: SourceQuantization, profile: Profile) -> None:
    """Reject a quantized model with scales that a profile's provider cannot keep.

    Args:
        own: Quantization of the source model.
        profile: The profile.

    Raises:
        BuildError: The provider would quantize the model again, or needs powers of two as scales.
    """
    name, settings = profile.name, profile.quantize
    if profile.provider.quantizes:
        raise BuildError(
            f"the model is quantized already ({own.precision}), and {profile.device.provider} "
            f"lowers the precision by itself: for profile '{name}' it would be quantized twice",
            found_in=f"profile {name}, provider.quantizes",
            remedy="give the float model it was made from",
        )
    if settings is None or settings.scales != "power_of_two" or not own.other_scales:
        return
    others = profile.gates.alternatives
    raise BuildError(
        f"the model is quantized already ({own.precision}) with "
        f"{counted(len(own.other_scales), 'scale')} other than a power of two, and profile "
        f"'{name}' computes with powers of two alone",
        found_in=f"scale {some_of(own.other_scales, _MOST_NAMED)}",
        remedy="give the float model it was made from"
        + (f", or --profile {others[0]}" if others else ""),
    )


def avoid_int16_saturation(
    combinations: Sequence[tuple[Combination, ...]], source: SourceModel
) -> list[tuple[Combination, ...]]:
    """Return profiles with settings for correct results of a quantized model on the CPU provider,
    with VNNI or without.

    Args:
        combinations: Of each profile.
        source: The model, with weights that may saturate where there is no VNNI.
    """
    if not may_saturate(source.model.graph):
        return list(combinations)
    return [tuple(map(_avoid_int16_saturation, entries)) for entries in combinations]


def _avoid_int16_saturation(entry: Combination) -> Combination:
    profile = entry.profile
    if profile.device.provider != CPU_PROVIDER:
        return entry
    provider = replace(profile.provider, session={**EXACT_SUMS, **profile.provider.session})
    return replace(entry, profile=replace(profile, provider=provider))


def describe_own(own: SourceQuantization, profile: Profile) -> tuple[str, ...]:
    """Return notes: the model stays unchanged, and its differences from the profile's recipe."""
    settings = profile.quantize
    first = f"The model comes quantized ({own.precision}): its own scales are kept."
    if settings is None:
        return (first,)
    differences = tuple(_differences(own, settings))
    if not differences:
        return (first,)
    return (first, f"The recipe of '{profile.name}' {', '.join(differences)}.")


def _differences(own: SourceQuantization, settings: Quantize) -> Iterator[str]:
    if own.operators:
        yield (
            f"would write Quantize/DequantizeLinear pairs, where the model has "
            f"{', '.join(own.operators)}"
        )
    if other := [kind for kind in own.activations if kind != settings.activations]:
        yield f"would make {settings.activations} activations, where the model has {_words(other)}"
    wanted = {settings.weights, settings.per_channel_weights or settings.weights}
    if other := [kind for kind in own.weights if kind not in wanted]:
        yield f"would make {_words(sorted(wanted))} weights, where the model has {_words(other)}"
    if own.is_per_channel and not settings.per_channel:
        yield "would make one scale a tensor, where the model has one a channel"


def _words(types: list[str]) -> str:
    return " and ".join(types)
