"""What a profile may say, as typed values; the TOML files have these keys and no others.

A list of settings here is the reference: `docs/profiles.md` tells what they are for.
"""

from typing import Literal

import msgspec

ActivationType = Literal["uint8", "int8", "uint16", "int16"]
WeightType = Literal["uint8", "int8"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all sections have: unknown keys are errors."""


class About(_Section, frozen=True, kw_only=True):
    """`[profile]`: what it is.

    Attributes:
        name: Name of the profile, and of the variant that it makes.
        summary: One line for `edgepack profiles list`.
        precision: Precision of what the recipe yields, for people: `fp32`, `a8w8` …
    """

    name: str
    summary: str
    precision: str


class Device(_Section, frozen=True, kw_only=True):
    """`[device]`: which device may run it. Empty means "any"; see `Requirements`."""

    provider: str
    type: Literal["cpu", "gpu", "npu"]
    arch: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()
    soc: tuple[str, ...] = ()
    runtime: str = ""
    drivers: dict[str, str] = {}


class Provider(_Section, frozen=True, kw_only=True):
    """`[provider]`: what ONNX Runtime is told on the device.

    Attributes:
        options: Options of the execution provider.
        session: Session config entries, e.g. `session.disable_cpu_ep_fallback`.
        quantizes: Whether the provider lowers the precision by itself: then a recipe that
            quantizes too would quantize twice, which is refused.
    """

    options: dict[str, str] = {}
    session: dict[str, str] = {}
    quantizes: bool = False


class Limits(_Section, frozen=True, kw_only=True):
    """`[limits]`: what the provider can read.

    Attributes:
        static_shapes: Whether every input needs a fixed shape.
        opset_min, opset_max: Range of the standard operator set.
        ir_version_max: Highest ONNX IR version of a written model.
        forbidden_ops: Operator types that the provider can never run.
        microsoft_ops: Operators of ONNX Runtime's own (com.microsoft) that the provider reads, Q/DQ
            aside; `*` means all of them.
    """

    static_shapes: bool = False
    opset_min: int = 11
    opset_max: int = 21
    ir_version_max: int = 10
    forbidden_ops: tuple[str, ...] = ()
    microsoft_ops: tuple[str, ...] = ()

    def reads_microsoft(self, op_type: str) -> bool:
        """Whether the provider reads an operator of ONNX Runtime's own; `*` asks for all."""
        return op_type in self.microsoft_ops or "*" in self.microsoft_ops


class Clean(_Section, frozen=True, kw_only=True, tag_field="name", tag="clean"):
    """Constant nodes become initializers, every node gets a unique name, the opset is raised.

    Attributes:
        opset: The standard operator set to convert to; a model that is newer keeps its own.
    """

    opset: int = 17


class FixShapes(_Section, frozen=True, kw_only=True, tag_field="name", tag="fix_shapes"):
    """Puts the shapes that were asked for in place of dynamic dimensions."""


class InferShapes(_Section, frozen=True, kw_only=True, tag_field="name", tag="infer_shapes"):
    """Finds out the shape and the type of every tensor."""


class Optimize(_Section, frozen=True, kw_only=True, tag_field="name", tag="optimize"):
    """ONNX Runtime's own graph optimization, offline.

    Attributes:
        level: `O1` folds constants and batch normalization and stays standard ONNX; `O2` also
            fuses into ONNX Runtime's own operators; `O3` also takes the approximation of GELU;
            `O4` is `O3` for GPUs, with a `float16` pass after it.
    """

    level: Literal["O1", "O2", "O3", "O4"] = "O1"


class FuseTransformer(
    _Section, frozen=True, kw_only=True, tag_field="name", tag="fuse_transformer"
):
    """Chains of small operators become the one operator of a transformer that they compute.

    Attributes:
        ops: What to fuse: `LayerNormalization` and `Gelu` are standard ONNX (Gelu from opset 20
            on); `SkipLayerNormalization` and `Attention` are ONNX Runtime's own.
    """

    ops: tuple[
        Literal["LayerNormalization", "Gelu", "SkipLayerNormalization", "Attention"], ...
    ] = ("LayerNormalization", "Gelu")


class QnnPreprocess(_Section, frozen=True, kw_only=True, tag_field="name", tag="qnn_preprocess"):
    """Chains that Qualcomm's HTP has one operator for become that operator."""


class VitisAiPreprocess(
    _Section, frozen=True, kw_only=True, tag_field="name", tag="vitisai_preprocess"
):
    """Chains that AMD's NPUs have one operator for become that operator."""


class ClampMask(_Section, frozen=True, kw_only=True, tag_field="name", tag="clamp_mask"):
    """Replaces "minus infinity" constants (attention masks), which would eat the whole range.

    Attributes:
        threshold: Constants at or below this are replaced.
        values: Candidates; the first with which the float model's outputs do not change is taken.
    """

    threshold: float = -1e4
    values: tuple[float, ...] = (-32.0, -64.0, -128.0, -256.0, -1e3, -1e4)


class SpellOut(_Section, frozen=True, kw_only=True, tag_field="name", tag="spell_out"):
    """Writes operators that the provider computes wrongly as others that compute the same.

    Attributes:
        ops: Which: `Reciprocal` becomes a division.
    """

    ops: tuple[Literal["Reciprocal"], ...] = ("Reciprocal",)


class Quantize(_Section, frozen=True, kw_only=True, tag_field="name", tag="quantize"):
    """Static quantization to Quantize/DequantizeLinear pairs.

    Attributes:
        ops: `compute` quantizes convolutions and matrix products only; `all` every operator
            that works on floats, so that the whole graph stays on an integer-only device.
        activations, weights: Integer types.
        activation_symmetric: Zero point in the middle of the type's range.
        weight_symmetric: The same for weights.
        per_channel: Operator types whose weights get one scale per output channel; such weights
            are always symmetric.
        per_channel_weights: Integer type of those; empty means `weights`.
        scales: `float`, or `power_of_two` exponents (AMD XINT8).
        weight_ranges: `minmax`, or `mse`: the range with the least mean squared error.
        output_ops: With `ops = "compute"`: operator types whose *output* is quantized too;
            the others get integers in and give floats out.
        leave_ops: Operator types that stay float.
        tie_ops: Operator types whose inputs and outputs must share one scale, beyond those
            that only move data.
        fixed_scales: Whether Sigmoid and Tanh get the scales that Qualcomm asks for.
        ranges: Ways to turn the calibration into ranges, in the order in which they are tried:
            `minmax`, `percentile-99.99`, `mse`, `entropy` …
        prepare: What is tried on the float model where no plain range holds the budget: `smooth`
            (SmoothQuant: outliers of activations move into weights), `cross-layer` (equalization
            of layers in a row). Each keeps what the model computes.
        smooth_alpha: Share of the outliers that SmoothQuant moves, 0…1.
        bias_correction: `try` also tries candidates whose biases make up for the mean error that
            quantization makes in each channel.
        backend: Whose quantizer: `edgepack`, or `quark`: AMD Quark, in an environment of its own.
        backend_timeout_s: Limit of one run of another's quantizer, seconds.
        reduce_range: Leave one bit of the weights unused (x86 CPUs without VNNI saturate).
        min_real_range: Least width of a range, so that a constant tensor has a sane scale.
        qdq_domain: Where Quantize/DequantizeLinear come from: `onnx`, `microsoft`, or
            `auto`: com.microsoft only for 16-bit types below opset 21, which ONNX lacks there.
        bias: `int32` with scale activation * weight, or `float` for providers that read no other.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    ops: Literal["compute", "all"]
    activations: ActivationType
    weights: WeightType
    activation_symmetric: bool = False
    weight_symmetric: bool = True
    per_channel: tuple[str, ...] = ()
    per_channel_weights: Literal["", "uint8", "int8"] = ""
    scales: Literal["float", "power_of_two"] = "float"
    weight_ranges: Literal["minmax", "mse"] = "minmax"
    output_ops: tuple[str, ...] = ()
    leave_ops: tuple[str, ...] = ()
    tie_ops: tuple[str, ...] = ()
    fixed_scales: bool = False
    ranges: tuple[str, ...] = ("minmax",)
    prepare: tuple[Literal["smooth", "cross-layer"], ...] = ()
    smooth_alpha: float = 0.5
    bias_correction: Literal["off", "try"] = "off"
    backend: Literal["edgepack", "quark"] = "edgepack"
    backend_timeout_s: float = 1800.0
    reduce_range: bool = False
    min_real_range: float = 1e-4
    qdq_domain: Literal["auto", "onnx", "microsoft"] = "auto"
    bias: Literal["int32", "float"] = "int32"
    max_float_share: float = 0.5


class Float16(_Section, frozen=True, kw_only=True, tag_field="name", tag="float16"):
    """Half precision: weights and activations of 16-bit floats, inputs and outputs of 32.

    Attributes:
        leave_ops: Operator types that stay 32-bit, beyond those that have no 16-bit form.
        activation_max: Greatest magnitude that a tensor may have on the calibration samples; what
            goes beyond stays 32-bit. 16-bit floats end at 65504, and other samples go higher.
        max_float_share: Share of nodes that the search may return to 32 bits, 0…1.
    """

    leave_ops: tuple[str, ...] = ()
    activation_max: float = 32768.0
    max_float_share: float = 0.5


class QuantizeDynamic(
    _Section, frozen=True, kw_only=True, tag_field="name", tag="quantize_dynamic"
):
    """8-bit weights; activations are quantized by what each inference brings. No calibration.

    Attributes:
        ops: Operator types whose constant weights are quantized.
        weights: Integer type of the weights, symmetric either way. `int8` saturates on x86 CPUs
            without VNNI unless `reduce_range`; a product was 16 % off there.
        per_channel: One scale per output channel.
        reduce_range: Leave one bit of the weights unused.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    ops: tuple[Literal["MatMul", "Gemm", "LSTM"], ...] = ("MatMul", "Gemm", "LSTM")
    weights: WeightType = "uint8"
    per_channel: bool = True
    reduce_range: bool = False
    max_float_share: float = 0.5


class QuantizeWeights(
    _Section, frozen=True, kw_only=True, tag_field="name", tag="quantize_weights"
):
    """Weights of few bits in blocks with a scale each; activations stay float.

    Attributes:
        methods: Ways to round, in the order in which they are tried: `rtn` to the nearest, `hqq`
            with zero points that shrink the error (half-quadratic), `gptq` with later weights
            making up for earlier ones' errors on the calibration samples.
        bits: Bits of a weight.
        block_size: Weights along the inner axis that share a scale.
        symmetric: Zero point in the middle of the type's range; `hqq` needs it free.
        embeddings: Whether tables that Gather reads are quantized too, by `rtn`.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves it to the provider,
            1 float32, 2 float16, 3 bfloat16, 4 int8.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    methods: tuple[Literal["rtn", "hqq", "gptq"], ...] = ("rtn", "hqq", "gptq")
    bits: Literal[4, 8] = 4
    block_size: Literal[16, 32, 64, 128, 256] = 32
    symmetric: bool = False
    embeddings: bool = True
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    max_float_share: float = 0.5


Lowering = Quantize | Float16 | QuantizeDynamic | QuantizeWeights
"""Passes that lower the precision: at most one, the last one of a recipe."""

Rewriting = Optimize | FuseTransformer | QnnPreprocess | VitisAiPreprocess | ClampMask | SpellOut
"""Passes that change the graph, and nothing that it computes."""

Pass = Clean | FixShapes | InferShapes | Rewriting | Lowering


class Compile(_Section, frozen=True, kw_only=True):
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
    options: dict[str, str] = {}
    timeout_s: float = 300.0


class AccuracyGate(_Section, frozen=True, kw_only=True):
    """`[gates.accuracy]`: how near to the float model a variant must stay.

    Attributes:
        metric: `auto` judges classifications by top-1 agreement, other outputs by explained
            variance, and vectors by their neighbourhood too; any other judges every output by
            that alone (`neighbourhood` where an output holds vectors).
        top1_agreement_min: Least share of samples with the float model's decision.
        sequence_agreement_min: Least share of decisions that agree, where a sample holds many
            (text lines). In trials a text recognizer lost 1.3 % of its lines for each 1 %.
        explained_variance_min: Least share of the variance between samples that is kept.
        neighbourhood_min: Least share that is kept of how vectors differ from sample to sample.
        cosine_min: Least cosine similarity.
        sqnr_db_min: Least signal to quantization noise, decibels.
        user_metric_kept_min: With a metric of the user's: least share of the float model's value.
    """

    metric: Literal[
        "auto", "top1_agreement", "explained_variance", "neighbourhood", "cosine", "sqnr_db"
    ] = "auto"
    top1_agreement_min: float = 0.98
    sequence_agreement_min: float = 0.985
    explained_variance_min: float = 0.98
    neighbourhood_min: float = 0.98
    cosine_min: float = 0.99
    sqnr_db_min: float = 20.0
    user_metric_kept_min: float = 0.99


class Gates(_Section, frozen=True, kw_only=True):
    """`[gates]`: what a variant must hold to be published.

    Attributes:
        placement_min: Least share of nodes that the provider must take, 0…1; checked where the
            provider can run on the build host.
        float_instead: When the float model is published instead: `slower` (the quantized one is
            clearly slower on the build host's own provider), `inaccurate` (no quantized one is
            within the accuracy budget). Empty means never: such a build is refused.
        size_ratio_max: Greatest size as a share of the float model's; 0 means no limit.
        otherwise: What a refusal for accuracy says to try: the next profile for the same device.
    """

    accuracy: AccuracyGate = AccuracyGate()
    placement_min: float = 0.0
    float_instead: tuple[Literal["slower", "inaccurate"], ...] = ()
    size_ratio_max: float = 0.0
    otherwise: str = "a profile with more bits (16-bit activations, fp32)"


class Profile(_Section, frozen=True, kw_only=True):
    """A resolved profile: inheritance applied, every key checked.

    Attributes:
        about: `[profile]`; `passes`: the `[[pass]]` entries in order; the others like their
            sections.
        sha256: Digest of the resolved settings (not of the file's bytes).
        source: The file it was read from, for messages; not part of the digest.
    """

    about: About = msgspec.field(name="profile")
    device: Device
    provider: Provider = Provider()
    limits: Limits = Limits()
    passes: tuple[Pass, ...] = msgspec.field(name="pass", default=())
    compile: Compile = Compile()
    gates: Gates = Gates()
    sha256: str = ""
    source: str = ""

    @property
    def name(self) -> str:
        """The profile's name."""
        return self.about.name

    @property
    def quantize(self) -> Quantize | None:
        """The recipe's quantization, if it has one."""
        for entry in self.passes:
            if isinstance(entry, Quantize):
                return entry
        return None

    @property
    def lowering(self) -> Lowering | None:
        """The pass that lowers the precision, if the recipe has one."""
        for entry in self.passes:
            if isinstance(entry, Lowering):
                return entry
        return None
