"""Description of a profile for readers who do not know its TOML."""

from collections.abc import Iterator, Mapping

import msgspec

from edgepack.packager.profiles.chips import find_chip
from edgepack.packager.profiles.pass_settings import (
    Float16,
    Lowering,
    Pass,
    Quantize,
    QuantizeDynamic,
    QuantizeWeights,
)
from edgepack.packager.profiles.schema import ANY, AccuracyBudgets, Gates, Profile, keep_of
from edgepack.tasks.table import TASKS

_PASSES: Mapping[str, str] = {
    "clean": "constants become initializers, nodes get names, an older model goes to opset {opset}",
    "fix_shapes": "the sizes that --shape gives take the place of open dimensions",
    "infer_shapes": "the shape and the type of every tensor are found out",
    "optimize": "ONNX Runtime's own graph optimization, level {level}",
    "fuse_transformer": "chains of small operators become one: {ops}",
    "qnn_preprocess": "chains that Qualcomm's NPU has one operator for become that operator",
    "vitisai_preprocess": "chains that AMD's NPUs have one operator for become that operator",
    "clamp_mask": "minus infinity in a mask becomes the first of {values} that changes no output",
    "apply_workarounds": "operators that this simulator computes wrongly are replaced: {ops}",
}
_PREPARATIONS = {"smooth": "SmoothQuant", "cross-layer": "equalization of layers in a row"}
_METHODS = {"rtn": "to the nearest", "hqq": "HQQ", "gptq": "GPTQ"}

Facts = Iterator[tuple[str, str]]
"""Labels and what is said of each; a label repeats where there is more to say."""


def describe_target(profile: Profile) -> Facts:
    """Return the devices, and the settings of their provider."""
    device, limits = profile.device, profile.limits
    yield "runs on", f"{device.provider}, {device.type}"
    wanted = [
        f"{key} {words}"
        for key, words in (
            ("arch", " or ".join(device.arch)),
            ("CPU features", " and ".join(device.cpu_features)),
            ("SoC", " or ".join(device.soc)),
            ("ONNX Runtime", device.runtime),
            *device.drivers.items(),
        )
        if words
    ]
    yield "devices", "; ".join(wanted) or "any that has it"
    for name, value in (*profile.provider.options.items(), *profile.provider.session.items()):
        yield "options", f"{name} = {value}"
    opsets = " to ".join(str(it) for it in sorted({limits.opset_min, limits.opset_max}))
    own = ", ".join(limits.microsoft_ops).replace("*", "all") or "none"
    yield "reads", f"opset {opsets}, IR version up to {limits.ir_version_max}"
    yield "reads", f"{own} of ONNX Runtime's own operators"
    if limits.forbidden_ops:
        yield "reads", f"never {', '.join(limits.forbidden_ops)}"
    for op_type, because in limits.forbidden_because.items():
        yield "reads", f"no {op_type}: {because}"
    if limits.explicit_attributes:
        yield "reads", f"{', '.join(limits.explicit_attributes)} with all attributes written out"
    yield "reads", "shapes that are fixed" if limits.static_shapes else "shapes that are open, too"


def describe_recipe(profile: Profile) -> Facts:
    """Return the profile's passes in order, and the compiler."""
    for entry in profile.passes:
        name = str(entry.__struct_config__.tag)
        for line in _describe_pass(name, entry):
            yield name, f"{line[:1].upper()}{line[1:]}."
    compiled = profile.compile
    if compiled.enabled:
        chip = find_chip(soc_model=compiled.soc_model, htp_arch=compiled.htp_arch)
        yield "compiled", f"Here, ahead of time, for v{chip.htp_arch} ({chip.soc})."
    elif profile.provider.quantizes:
        yield "compiled", "On the device, whose provider lowers the precision by itself."
    else:
        yield "compiled", "On the device, when it opens the model."


def _describe_pass(name: str, entry: Pass) -> Iterator[str]:
    match entry:
        case Quantize():
            yield from _describe_static(entry)
        case QuantizeDynamic():
            yield f"{entry.takes} get {entry.weights} weights{_unused_bit(entry.reduce_range)}"
            yield "activations are quantized by what each inference brings: nothing is calibrated"
        case QuantizeWeights():
            yield f"{entry.takes} get weights of {entry.bits} bits"
            yield f"each {entry.block_size} of them share a scale"
            methods = ", then ".join(_METHODS[method] for method in entry.methods)
            yield f"weights are rounded {methods}: the first that holds the accuracy"
        case Float16():
            ops = f", but for {', '.join(entry.exclude_ops)}" if entry.exclude_ops else ""
            yield f"every operator that has a form of 16-bit floats gets it{ops}"
            yield f"what goes beyond {entry.activation_max:g} on the samples stays 32-bit"
        case _:
            words = {
                key: ", ".join(map(_plain, value)) if isinstance(value, tuple) else value
                for key, value in msgspec.structs.asdict(entry).items()
            }
            yield _PASSES[name].format_map(words)
    if isinstance(entry, Lowering):
        share = _percent(entry.max_float_share)
        yield f"{_first_help(entry)}up to {share} of these nodes may stay float"


def _describe_static(entry: Quantize) -> Iterator[str]:
    ops = f", but for {', '.join(entry.exclude_ops)}" if entry.exclude_ops else ""
    whole = "every operator that has a quantized form" if entry.ops == "all" else entry.takes
    yield f"quantizes {whole}{ops}"
    if entry.raced_ops not in ("", entry.ops):
        yield f"races it against every operator that has a quantized form{ops}: the faster one wins"
    scales = ", scales that are powers of two" if entry.scales == "power_of_two" else ""
    yield f"activations: {entry.activations}{_centred(entry.activation_symmetric)}{scales}"
    per_channel = ""
    if entry.per_channel:
        kind = entry.per_channel_weights or entry.weights
        per_channel = f"; {kind} with a scale a channel in {', '.join(entry.per_channel)}"
    unused = _unused_bit(entry.reduce_range)
    yield f"weights: {entry.weights}{_centred(entry.weight_symmetric)}{per_channel}{unused}"
    yield f"ranges from the samples by {', then '.join(entry.ranges)}: the first that is enough"
    further = [
        *(_PREPARATIONS[name] for name in entry.prepare),
        *(("bias correction",) if entry.bias_correction == "try" else ()),
        *(("weights in 2 parts",) if entry.weight_parts > 1 else ()),
        *(("GPTQ for the weights",) if entry.weight_rounding == "gptq" else ()),
    ]
    if further:
        yield f"where these lose too much: {', '.join(further)}"
    if entry.backend == "quark":
        yield "AMD Quark makes it, in an environment of its own"


def _centred(is_symmetric: bool) -> str:
    return ", zero in the middle" if is_symmetric else ""


def _unused_bit(reduce_range: bool) -> str:
    return "; one bit of them stays unused" if reduce_range else ""


def _first_help(entry: Lowering) -> str:
    """Return the first remedy for costly nodes, before float nodes."""
    if isinstance(entry, Quantize) and entry.has_high_precision:
        return f"nodes that cost too much get {entry.high_precision_activations} activations; "
    if isinstance(entry, QuantizeWeights) and entry.has_high_precision:
        return f"nodes that cost too much get weights of {entry.high_precision_bits} bits; "
    return ""


def describe_gates(gates: Gates) -> Facts:
    """Return the gates of a variant, and the result of a failed gate."""
    for line in _describe_accuracy(gates.accuracy):
        yield "accuracy", line
    if gates.placement_min:
        share = _percent(gates.placement_min)
        yield "placement", f"The provider, where it runs here, takes {share} of the nodes or more."
    if gates.size_ratio_max:
        yield "size", f"At most {_percent(gates.size_ratio_max)} of the float model's bytes."
    if gates.float_instead:
        enough = {
            "speed": "the quantized one is not 5% faster",
            "size": "the quantized one is hardly smaller and no faster",
            "balanced": "it is not slower",
            "device": "it is faster on a device, which has both",
        }
        reasons = {"slower": enough[gates.prefer], "inaccurate": "no other holds the accuracy"}
        words = ", or ".join(reasons[reason] for reason in gates.float_instead)
        yield "otherwise", f"The float model is published where {words}."
    else:
        yield "otherwise", "The build is refused, with the numbers and what to try."
    if gates.alternatives:
        yield "otherwise", f"Looked at in its place: {', '.join(gates.alternatives)}."
    if gates.known_wrong_ops:
        wrong = ", ".join(gates.known_wrong_ops)
        yield "beware", f"The provider was seen to compute these wrongly in some graphs: {wrong}."


def _describe_accuracy(budgets: AccuracyBudgets) -> Iterator[str]:
    everywhere = keep_of(budgets, ANY)
    yield f"A variant keeps {_percent(everywhere)} of what the float model is used for."
    for name, task in TASKS.items():
        if (keep := keep_of(budgets, name)) != everywhere:
            yield f"Of {name} ({task.words}) it keeps {_percent(keep)}."


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
