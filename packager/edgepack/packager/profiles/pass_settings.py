"""Settings of each pass in a profile: the keys of `[[pass]]` entries.

The lists of settings here are the reference: `docs/reference/passes.md` explains their purpose.
"""

from typing import Annotated, Literal, get_args

import msgspec

from edgepack.packager.profiles.section import Section, Share

ActivationType = Literal["uint8", "int8", "uint16", "int16"]
WeightType = Literal["uint8", "int8"]
WorkaroundOp = Literal[
    "Reciprocal",
    "Sigmoid",
    "Softplus",
    "Tanh",
    "Pow",
    "CumSum",
    "Gather",
    "Pad",
    "Resize",
    "AveragePool",
]
WIDE_TYPES = ("uint16", "int16")
"""Types of activations that have 16 bits."""

LARGEST_FLOAT16 = 65504.0
"""Where 16-bit floats end."""


class Clean(Section, frozen=True, kw_only=True, tag_field="name", tag="clean"):
    """Constant nodes become initializers, every node gets a unique name, the opset is raised.

    Attributes:
        opset: The standard operator set to convert to; a model that is newer keeps its own.
    """

    opset: int = 17


class FixShapes(Section, frozen=True, kw_only=True, tag_field="name", tag="fix_shapes"):
    """Puts the shapes that were asked for in place of dynamic dimensions."""


class InferShapes(Section, frozen=True, kw_only=True, tag_field="name", tag="infer_shapes"):
    """Finds out the shape and the type of every tensor."""


class Optimize(Section, frozen=True, kw_only=True, tag_field="name", tag="optimize"):
    """ONNX Runtime's own graph optimization, offline.

    Attributes:
        level: `O1` folds constants and batch normalization and stays standard ONNX; `O2` also fuses
            into ONNX Runtime's own operators; `O3` also uses the approximation of GELU; `O4` is
            `O3` for GPUs, with a `float16` pass after it.
    """

    level: Literal["O1", "O2", "O3", "O4"] = "O1"


class FuseTransformer(Section, frozen=True, kw_only=True, tag_field="name", tag="fuse_transformer"):
    """Fusion of small operators into the transformer operator that they compute.

    Attributes:
        ops: Operators to fuse: `LayerNormalization` and `Gelu` are standard ONNX (Gelu from opset
            20 on); `FastGelu` (GELU by its tanh formula), `SkipLayerNormalization` and `Attention`
            are ONNX Runtime's own.
    """

    ops: tuple[
        Literal["LayerNormalization", "Gelu", "FastGelu", "SkipLayerNormalization", "Attention"],
        ...,
    ] = ("LayerNormalization", "Gelu")


class QnnPreprocess(Section, frozen=True, kw_only=True, tag_field="name", tag="qnn_preprocess"):
    """Replacement of chains by a single operator of Qualcomm's HTP."""


class VitisAiPreprocess(
    Section, frozen=True, kw_only=True, tag_field="name", tag="vitisai_preprocess"
):
    """Replacement of chains by a single operator of AMD's NPUs."""


class ClampMask(Section, frozen=True, kw_only=True, tag_field="name", tag="clamp_mask"):
    """Replaces "minus infinity" constants (attention masks), which would eat the whole range.

    Attributes:
        threshold: Constants at or below this are replaced.
        values: Candidates; the first with which the float model's outputs do not change is taken.
    """

    threshold: float = -1e4
    values: tuple[float, ...] = (-32.0, -64.0, -128.0, -256.0, -1e3, -1e4)


class ApplyWorkarounds(
    Section, frozen=True, kw_only=True, tag_field="name", tag="apply_workarounds"
):
    """Writes operators that a simulator computes wrongly as other operators with the same result.

    `passes/workarounds/table.py` lists the defects and the affected releases of the simulator. A
    workaround applies if the simulator that tries the variant has an affected release. No chip was
    seen with a defect.

    Attributes:
        ops: Operators to replace.
        on_chips: Apply the workarounds without a simulator, or with another release, too.
    """

    ops: tuple[WorkaroundOp, ...] = get_args(WorkaroundOp)
    on_chips: bool = False


class Quantize(Section, frozen=True, kw_only=True, tag_field="name", tag="quantize"):
    """Static quantization to Quantize/DequantizeLinear pairs.

    Attributes:
        ops: `compute` quantizes convolutions and matrix products only; `all` every operator
            that works on floats, so that the whole graph stays on an integer-only device.
        raced_ops: `all` also searches candidates with every operator quantized, and races the best
            of both scopes if the provider is here; the faster candidate is published. Empty: no
            race.
        activations, weights: Integer types.
        high_precision_activations: Integer type of 16 bits for the activations of costly nodes,
            before any node returns to float; their weights stay unchanged. Empty: none do. The
            setting has no effect if `activations` have 16 bits already.
        activation_symmetric: Zero point in the middle of the type's range.
        weight_symmetric: The same for weights.
        per_channel: Operator types with a weight scale per output channel; such weights are always
            symmetric.
        per_channel_weights: Integer type of these weights; empty means `weights`.
        scales: `float`, or `power_of_two` exponents (AMD XINT8).
        weight_ranges: `minmax`, or `mse`: the range with the least mean squared error.
        output_ops: With `ops = "compute"`: operator types with a quantized *output*, too; all other
            operators read integers and write floats.
        exclude_ops: Operator types that stay float.
        tie_ops: Operator types with a common scale of inputs and outputs, beyond operators that
            only move data.
        fixed_scales: Whether Sigmoid, Tanh, HardSigmoid and LpNormalization get the scales of
            Qualcomm's NPU, and Log and HardSwish the scales that the NPU computes rightly.
        ranges: Methods for ranges from the calibration, in the order of attempts:
            `minmax`, `percentile-99.99`, `mse`, `entropy` …
        prepare: Changes of the float model if no plain range holds the budget: `smooth`
            (SmoothQuant: outliers of activations move into weights), `cross-layer` (equalization of
            consecutive layers). Each keeps the model's function.
        smooth_alpha: Share of the outliers that SmoothQuant moves, 0…1.
        bias_correction: `try` also tries candidates with biases that compensate the mean
            quantization error of each channel.
        weight_rounding: `nearest`, or `gptq`: also tries candidates with weights rounded column by
            column, later columns compensating earlier errors on the calibration samples.
        weight_parts: 2 writes each convolution as a sum of two: its weights, and what rounding
            these costs. So 8-bit weights count as 16 bits, for twice the work and bytes.
        backend: The quantizer: `edgepack`, or `quark`: AMD Quark, in a separate environment.
        backend_timeout_s: Limit of a run of an external quantizer, seconds.
        reduce_range: Leave a bit of the weights unused (x86 CPUs without VNNI saturate).
        min_real_range: Least width of a range, so that a constant tensor has a sane scale.
        qdq_domain: Where Quantize/DequantizeLinear come from: `onnx`, `microsoft`, or
            `auto`: com.microsoft only for 16-bit types below opset 21, which ONNX lacks there.
        bias: `int32` with scale activation * weight, or `float` for providers that read no other.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    ops: Literal["compute", "all"]
    raced_ops: Literal["", "all"] = ""
    activations: ActivationType
    weights: WeightType
    high_precision_activations: Literal["", "uint16", "int16"] = ""
    activation_symmetric: bool = False
    weight_symmetric: bool = True
    per_channel: tuple[str, ...] = ()
    per_channel_weights: Literal["", "uint8", "int8"] = ""
    scales: Literal["float", "power_of_two"] = "float"
    weight_ranges: Literal["minmax", "mse"] = "minmax"
    output_ops: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    tie_ops: tuple[str, ...] = ()
    fixed_scales: bool = False
    ranges: tuple[str, ...] = ("minmax",)
    prepare: tuple[Literal["smooth", "cross-layer"], ...] = ()
    smooth_alpha: Share = 0.5
    bias_correction: Literal["off", "try"] = "off"
    weight_rounding: Literal["nearest", "gptq"] = "nearest"
    weight_parts: Literal[1, 2] = 1
    backend: Literal["edgepack", "quark"] = "edgepack"
    backend_timeout_s: float = 1800.0
    reduce_range: bool = False
    min_real_range: float = 1e-4
    qdq_domain: Literal["auto", "onnx", "microsoft"] = "auto"
    bias: Literal["int32", "float"] = "int32"
    max_float_share: Share = 0.5

    @property
    def precision(self) -> str:
        """Types in a word: `a8w8`, `a16w8`."""
        bits = (
            kind.removeprefix("u").removeprefix("int") for kind in (self.activations, self.weights)
        )
        return "a{}w{}".format(*bits)

    @property
    def has_high_precision(self) -> bool:
        """True if nodes can get activations with more bits than all others."""
        return bool(self.high_precision_activations) and self.activations not in WIDE_TYPES

    @property
    def takes(self) -> str:
        """Nodes that the pass lowers, in words."""
        if self.ops == "all":
            return "every operator that has a quantized form, but for exclude_ops"
        return "convolutions and matrix products with constant weights"


class Float16(Section, frozen=True, kw_only=True, tag_field="name", tag="float16"):
    """Half precision: weights and activations of 16-bit floats, inputs and outputs of 32.

    Attributes:
        exclude_ops: Operator types that stay 32-bit, beyond operators without a 16-bit form.
        activation_max: Greatest magnitude of a 16-bit tensor on the calibration samples; tensors
            beyond stay 32-bit. 16-bit floats end at 65504, and other samples go higher.
        max_float_share: Share of nodes that the search may return to 32 bits, 0…1.
    """

    exclude_ops: tuple[str, ...] = ()
    activation_max: Annotated[float, msgspec.Meta(gt=0.0, le=LARGEST_FLOAT16)] = 32768.0
    max_float_share: Share = 0.5

    @property
    def takes(self) -> str:
        """Nodes that the pass lowers, in words."""
        return "every operator that has a 16-bit form, but for exclude_ops"


class QuantizeDynamic(Section, frozen=True, kw_only=True, tag_field="name", tag="quantize_dynamic"):
    """8-bit weights; activations are quantized by the values of each inference. No calibration.

    Attributes:
        ops: Operator types with quantized constant weights.
        weights: Integer type of the weights, symmetric either way. `int8` saturates on x86 CPUs
            without VNNI unless `reduce_range`; a product was 16 % off there.
        per_channel: A scale per output channel.
        reduce_range: Leave a bit of the weights unused.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    ops: tuple[Literal["MatMul", "Gemm", "LSTM"], ...] = ("MatMul", "Gemm", "LSTM")
    weights: WeightType = "uint8"
    per_channel: bool = True
    reduce_range: bool = False
    max_float_share: Share = 0.5

    @property
    def takes(self) -> str:
        """Nodes that the pass lowers, in words."""
        return f"{', '.join(self.ops)} with constant weights"


class QuantizeWeights(Section, frozen=True, kw_only=True, tag_field="name", tag="quantize_weights"):
    """Weights of few bits in blocks with a scale each; activations stay float.

    Attributes:
        methods: Rounding methods, in the order of attempts: `rtn` to the nearest, `hqq` with zero
            points that shrink the error (half-quadratic), `gptq` with later weights compensating
            earlier errors on the calibration samples.
        bits: Bits of a weight.
        high_precision_bits: Bits of the weights of nodes that cost too much, before any node
            returns to float; 0: none get more. The setting has no effect if `bits` are 8 already.
        block_size: Weights along the inner axis that share a scale.
        scale_bits: Bits of a stored scale; ONNX Runtime makes 32 of 16 while it loads the model.
        symmetric: Zero point in the middle of the type's range; `hqq` needs a free zero point.
        embeddings: Whether tables that Gather reads are quantized too, by `rtn`.
        accuracy_level: Allowed rounding of activations in ONNX Runtime: 0 leaves the choice to the
            provider, 1 float32, 2 float16, 3 bfloat16, 4 int8.
        max_float_share: Share of quantized nodes that the search may return to float, 0…1.
    """

    methods: tuple[Literal["rtn", "hqq", "gptq"], ...] = ("rtn", "hqq", "gptq")
    bits: Literal[4, 8] = 4
    high_precision_bits: Literal[0, 8] = 0
    block_size: Literal[16, 32, 64, 128, 256] = 32
    scale_bits: Literal[16, 32] = 32
    symmetric: bool = False
    embeddings: bool = True
    accuracy_level: Literal[0, 1, 2, 3, 4] = 0
    max_float_share: Share = 0.5

    @property
    def takes(self) -> str:
        """Nodes that the pass lowers, in words."""
        tables = ", and tables that Gather reads," if self.embeddings else ""
        return f"MatMul and Gemm with constant weights{tables} of 1,024 numbers or more"

    @property
    def has_high_precision(self) -> bool:
        """True if nodes can get weights with more bits than all others."""
        return self.high_precision_bits > self.bits


Lowering = Quantize | Float16 | QuantizeDynamic | QuantizeWeights
"""Passes that lower the precision: at most one, the last one of a recipe."""

Rewriting = (
    Optimize | FuseTransformer | QnnPreprocess | VitisAiPreprocess | ClampMask | ApplyWorkarounds
)
"""Passes that change the graph, and nothing that it computes."""

Pass = Clean | FixShapes | InferShapes | Rewriting | Lowering
