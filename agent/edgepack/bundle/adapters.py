"""Adapters (LoRA) of a model that generates texts: places in its graph, and facts of a release.

A base that was built for adapters has a branch beside each product of its layers: the product's
input times A times B is added to its output. A and B are inputs of the graph with a default of
rank 0. So adapters share the session and the weights of their base.
"""

from typing import Annotated

import msgspec

ADAPTER_FILE = "adapter.onnx_adapter"
"""File of an adapter's variant, in ONNX Runtime's format for adapters."""

MAX_ADAPTER_BYTES = 2**31
"""Of the file; the format's own limit."""

MAX_RANK = 4096

_Few = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Size = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
_Path = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_./%-]{1,200}\Z")]


class AdaptedPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Outputs of a product that come from a module of the source model.

    Attributes:
        module: Path of the module within its layer, e.g. `self_attn.q_proj`.
        first: First row of the module's weight.
        size: Number of rows, which are outputs.
    """

    module: _Path
    first: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    size: _Size


class AdaptedProduct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Product that adapters add to, in each layer.

    Attributes:
        path: Path of its nodes; `%d` stands for the layer.
        inputs: Columns of the modules' weights.
        parts: Modules, in the order of the outputs.
    """

    path: _Path
    inputs: _Size
    parts: Annotated[tuple[AdaptedPart, ...], msgspec.Meta(min_length=1, max_length=16)]

    @property
    def outputs(self) -> int:
        """Outputs of all modules."""
        return sum(part.size for part in self.parts)

    def tensors(self, layer: int) -> tuple[str, str]:
        """Return the graph's inputs of a layer: A, (inputs, rank), and B, (rank, outputs)."""
        name = self.path.replace("%d", str(layer)).strip("/").replace("/", ".")
        return f"{name}.lora_A.weight", f"{name}.lora_B.weight"


class AdapterPlaces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Places of a graph that adapters add to.

    Attributes:
        layers: Number of layers.
        products: Products of each layer.
    """

    layers: _Few
    products: Annotated[tuple[AdaptedProduct, ...], msgspec.Meta(min_length=1, max_length=32)]

    @property
    def shapes(self) -> dict[str, tuple[int | None, int | None]]:
        """Shapes of all tensors by name; None stands for the rank."""
        found: dict[str, tuple[int | None, int | None]] = {}
        for layer in range(self.layers):
            for product in self.products:
                first, second = product.tensors(layer)
                found |= {first: (product.inputs, None), second: (None, product.outputs)}
        return found


class AdapterFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts of a release that is an adapter.

    Attributes:
        base: Name of the base, a model of its own.
        base_version: Version of the base, for people.
        base_digest: Digest of the base's bundle, the only one that the adapter is for.
        rank: Largest rank of a module.
        modules: Modules that the adapter changes, e.g. `self_attn.q_proj`.
    """

    base: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9._-]{0,99}\Z")]
    base_version: Annotated[
        str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z", max_length=200)
    ]
    base_digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    rank: Annotated[int, msgspec.Meta(ge=1, le=MAX_RANK)]
    modules: Annotated[tuple[_Path, ...], msgspec.Meta(min_length=1, max_length=64)]

    @property
    def words(self) -> str:
        """Base for people: name, version and digits of the digest."""
        return f"{self.base} {self.base_version} ({self.base_digest[:12]})"
