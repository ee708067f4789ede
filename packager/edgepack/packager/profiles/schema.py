"""Schema of profiles as typed values: the keys of the TOML files.

The lists of settings here are the reference: `docs/reference/profile-keys.md` explains their
purpose.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from edgepack.packager.profiles.pass_settings import Lowering, Pass, Quantize
from edgepack.packager.profiles.section import Section, Share
from edgepack.tasks.contract import LOSS

Preference = Literal["speed", "size", "balanced", "device"]


class About(Section, frozen=True, kw_only=True):
    """`[profile]`: name and summary.

    Attributes:
        name: Name of the profile, and of its variant.
        summary: A line for `edgepack profiles list`.
        precision: Precision of the recipe's result, for people: `fp32`, `a8w8` …
    """

    name: str
    summary: str
    precision: str


class Device(Section, frozen=True, kw_only=True):
    """`[device]`: devices that may run the variant. Empty means "any"; see `Requirements`."""

    provider: str
    type: Literal["cpu", "gpu", "npu"]
    arch: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    soc: tuple[str, ...] = ()
    runtime: str = ""
    drivers: dict[str, str] = msgspec.field(default_factory=dict)


class Provider(Section, frozen=True, kw_only=True):
    """`[provider]`: settings of ONNX Runtime on the device.

    Attributes:
        options: Options of the execution provider.
        decoder_options: Options for decoders with fixed shapes, besides `options`.
        session: Session config entries, e.g. `session.disable_cpu_ep_fallback`.
        quantizes: Whether the provider lowers the precision by itself: then a recipe that
            quantizes too would quantize twice, which is refused.
        unchecked: Options and session entries, by name, that are newer than edgepack's list of the
            provider's options (`option_checks`): passed on unchanged.
    """

    options: dict[str, str] = msgspec.field(default_factory=dict)
    decoder_options: dict[str, str] = msgspec.field(default_factory=dict)
    session: dict[str, str] = msgspec.field(default_factory=dict)
    quantizes: bool = False
    unchecked: tuple[str, ...] = ()


class Limits(Section, frozen=True, kw_only=True):
    """`[limits]`: limits of the provider's input.

    Attributes:
        static_shapes: Whether every input needs a fixed shape.
        opset_min, opset_max: Range of the standard operator set.
        ir_version_max: Highest ONNX IR version of a written model.
        forbidden_ops: Operator types that the provider can never run.
        forbidden_because: Reaction of the provider to a forbidden operator, and the source.
        explicit_attributes: Convolutions and poolings of which the provider needs every attribute
            written out, defaults included.
        microsoft_ops: Operators of ONNX Runtime's own (com.microsoft) that the provider reads,
            except Q/DQ; `*` means all.
    """

    static_shapes: bool = False
    opset_min: int = 11
    opset_max: int = 21
    ir_version_max: int = 10
    forbidden_ops: tuple[str, ...] = ()
    forbidden_because: dict[str, str] = msgspec.field(default_factory=dict)
    explicit_attributes: tuple[str, ...] = ()
    microsoft_ops: tuple[str, ...] = ()

    def reads_microsoft(self, op_type: str) -> bool:
        """Return True if the provider reads an operator of ONNX Runtime's own; `*` asks for all."""
        return op_type in self.microsoft_ops or "*" in self.microsoft_ops


class Compile(Section, frozen=True, kw_only=True):
    """`[compile]`: whether to compile ahead of time to the provider's own binary (EPContext).

    Attributes:
        enabled: Off leaves compiling to the device.
        soc_model, htp_arch: The chip to compile for, in the provider's own numbers.
        options: Provider options used only while compiling.
        timeout_s: Time limit of the compiler, seconds.
    """

    enabled: bool = False
    soc_model: str = ""
    htp_arch: str = ""
    options: dict[str, str] = msgspec.field(default_factory=dict)
    timeout_s: float = 300.0


class AccuracyBudget(Section, frozen=True, kw_only=True):
    """`[gates.accuracy.TASK]`: how much of a task a variant must keep.

    Attributes:
        keep: Least share of the float model's result; 0 requires nothing.
    """

    keep: Share = 1.0 - LOSS


AccuracyBudgets = Mapping[str, AccuracyBudget]
"""By task, or `own` (a user's metric, and labels); `any` counts for tasks that are not named."""

ANY = "any"


def keep_of(budgets: AccuracyBudgets, task: str) -> float:
    """Return the least share of a task that must be kept."""
    return budgets.get(task, budgets.get(ANY, AccuracyBudget())).keep


class Gates(Section, frozen=True, kw_only=True):
    """`[gates]`: requirements for publishing a variant.

    Attributes:
        placement_min: Least share of nodes that the provider must take, 0…1; checked where the
            provider can run on the build host.
        float_instead: Cases in which the float model is published instead: `slower` (the quantized
            model is not worthwhile, by `prefer`, on the build host's own provider), `inaccurate`
            (no quantized model is within the accuracy budget). Empty means never: such a build
            fails.
        prefer: Condition for a worthwhile quantized model: with `speed` at least 5 % faster than
            the float model; with `size` smaller, at any speed; with `balanced` smaller and not 10 %
            slower. A hardly smaller model must be 10 % faster with these two. With `device` both
            forms are published if the profile allows the float form, and each device uses its
            faster form. Of searched settings the fastest or, with `size`, the smallest that are
            right are taken.
        undecided: Published model if races cannot decide whether the quantized model is fast
            enough. The quantized model is the profile's purpose, is smaller, and keeps its accuracy
            budget.
        size_ratio_max: Greatest size as a share of the float model's; 0 means no limit.
        alternatives: Names of profiles for the same device with more bits: tested if no model of
            this profile holds its budget, or little is saved.
        known_wrong_ops: Operator types that the provider was seen to compute wrongly in some
            graphs: where its outputs are off, the refusal names the model's nodes of these types.
    """

    accuracy: dict[str, AccuracyBudget] = msgspec.field(default_factory=dict)
    placement_min: Share = 0.0
    float_instead: tuple[Literal["slower", "inaccurate"], ...] = ()
    prefer: Preference = "balanced"
    undecided: Literal["quantized", "float"] = "quantized"
    size_ratio_max: float = 0.0
    alternatives: tuple[str, ...] = ()
    known_wrong_ops: tuple[str, ...] = ()


class ProfileSections(Section, frozen=True, kw_only=True):
    """Sections of a profile's file.

    Attributes:
        about: `[profile]`; `passes`: the `[[pass]]` entries in order; all other fields like their
            sections.
    """

    about: About = msgspec.field(name="profile")
    device: Device
    provider: Provider = Provider()
    limits: Limits = Limits()
    passes: tuple[Pass, ...] = msgspec.field(name="pass", default=())
    compile: Compile = Compile()
    gates: Gates = Gates()


class Profile(ProfileSections, frozen=True, kw_only=True):
    """A resolved profile: inheritance applied, every key checked.

    Attributes:
        sha256: Digest of the resolved settings (not of the file's bytes).
        source: The profile's file, for messages; not part of the digest.
    """

    sha256: str = ""
    source: str = ""

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.about.name

    @property
    def quantize(self) -> Quantize | None:
        """The recipe's quantization, if any."""
        for entry in self.passes:
            if isinstance(entry, Quantize):
                return entry
        return None

    @property
    def lowering(self) -> Lowering | None:
        """The pass that lowers the precision, if any."""
        for entry in self.passes:
            if isinstance(entry, Lowering):
                return entry
        return None
