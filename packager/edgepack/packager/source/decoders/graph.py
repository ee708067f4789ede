"""Graph of a decoder with a cache, as onnxruntime-genai's builder names its tensors and nodes.

Attention is com.microsoft's GroupQueryAttention with the rotary embedding inside: keys and values
of the past and the present may be the same memory. The weights are written to a file one by one, in
pieces, so that memory does not depend on the model's size. Embeddings and head that are tied are
one tensor: the head multiplies by its transpose (FusedMatMul).
"""

import mmap
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgepack.bundle.adapters import AdaptedPart, AdaptedProduct, AdapterPlaces
from edgepack.packager.graph import stored_tensors
from edgepack.packager.graph.edits import MICROSOFT
from edgepack.packager.source.decoders.rotary import Rotary
from edgepack.packager.source.decoders.shape import DecoderShape
from edgepack.packager.source.decoders.weights import Rows, Weights
from edgepack.tasks.arrays import Singles, Tensor

OPSET = 17
IR_VERSION = 8
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
POSITIONS = "model.embed_positions.weight"

_BATCH, _STEPS = "batch_size", "sequence_length"
_PAST, _TOTAL = "past_sequence_length", "total_sequence_length"


class DecoderGraph:
    """Writer of a decoder's graph.

    Args:
        shape: Shape of the decoder.
        weights: Its weights; `check_weights` passed.
        file: Open file for the weights' values.
        location: Name of that file, next to the model.
    """

    def __init__(
        self, shape: DecoderShape, weights: Weights, file: IO[bytes], location: str
    ) -> None:
        self._shape, self._weights = shape, weights
        self._file, self._location = file, location
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._values: list[onnx.ValueInfoProto] = []
        self._known: set[str] = set()
        self._products: list[AdaptedProduct] = []

    @property
    def places(self) -> AdapterPlaces:
        """Places for adapters: the products of each layer, after `write`."""
        return AdapterPlaces(layers=self._shape.layers, products=tuple(self._products))

    def write(self) -> Iterator[int]:
        """Write all layers; yield the number of finished layers after each."""
        shape = self._shape
        state = self._embed()
        self._lengths()
        added = ""
        for layer in range(shape.layers):
            prefix = f"model.layers.{layer}"
            normal, state = self._normalize(f"{prefix}.input_layernorm", state, added)
            added = self._attend(layer, normal)
            after = "post_attention_layernorm"
            if shape.family.has_outer_norms:
                added = self._normalize(f"{prefix}.{after}", added)[0]
                after = "pre_feedforward_layernorm"
            normal, state = self._normalize(f"{prefix}.{after}", state, added)
            added = self._multiply(layer, normal)
            if shape.family.has_outer_norms:
                added = self._normalize(f"{prefix}.post_feedforward_layernorm", added)[0]
            yield layer + 1
        self._score(self._normalize("model.norm", state, added, is_last=True)[0])

    def model(self) -> onnx.ModelProto:
        """Return the model, after `write`."""
        shape = self._shape

        def value(name: str, kind: int, sizes: list[int | str]) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, sizes)

        def cache(name: str, length: str) -> list[onnx.ValueInfoProto]:
            sizes: list[int | str] = [_BATCH, shape.kv_heads, length, shape.head_size]
            return [
                value(f"{name}.{layer}.{part}", TensorProto.FLOAT, sizes)
                for layer in range(shape.layers)
                for part in ("key", "value")
            ]

        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [
                value("input_ids", TensorProto.INT64, [_BATCH, _STEPS]),
                value("attention_mask", TensorProto.INT64, [_BATCH, _TOTAL]),
                *(
                    [value("position_ids", TensorProto.INT64, [_BATCH, _STEPS])]
                    if shape.family.has_positions
                    else []
                ),
                *cache("past_key_values", _PAST),
            ],
            [
                value("logits", TensorProto.FLOAT, [_BATCH, _STEPS, shape.vocabulary]),
                *cache("present", _TOTAL),
            ],
            self._tensors,
            value_info=self._values,
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgepack"
        )

    def _embed(self) -> str:
        self._store(EMBEDDING, (Rows(name=EMBEDDING),), is_transposed=False)
        name = "/model/embed_tokens/Gather"
        state = self._node("Gather", name, [EMBEDDING, "input_ids"], self._shape.hidden)
        if self._shape.family.has_positions:
            self._store(POSITIONS, (Rows(name=POSITIONS),), is_transposed=False)
            path, size = "/model/embed_positions", self._shape.hidden
            place = self._node("Gather", f"{path}/Gather", [POSITIONS, "position_ids"], size)
            return self._node("Add", f"{path}/Add", [state, place], size)
        if not self._shape.family.scales_embedding:
            return state
        scale = self._constant("embedding_scale", np.float32(self._shape.hidden**0.5))
        return self._node("Mul", "/model/embed_tokens/Mul", [state, scale], self._shape.hidden)

    def _lengths(self) -> None:
        """Compute the lengths that attention reads: of each text less one, and of the longest."""
        base, one = "/model/attn_mask_reformat", self._constant("one", np.array([1], np.int64))
        summed = self._node("ReduceSum", f"{base}/ReduceSum", ["attention_mask", one], keepdims=0)
        less = self._node("Sub", f"{base}/Sub", [summed, one])
        self._seqlens = self._node("Cast", f"{base}/Sub/Cast", [less], to=TensorProto.INT32)
        sizes = self._node("Shape", f"{base}/Shape", ["attention_mask"])
        place = self._constant("second", np.array(1, np.int64))
        total = self._node("Gather", f"{base}/Gather", [sizes, place], axis=0)
        self._total = self._node("Cast", f"{base}/Gather/Cast", [total], to=TensorProto.INT32)

    def _normalize(
        self, weight: str, state: str, added: str = "", *, is_last: bool = False
    ) -> tuple[str, str]:
        """Write a norm of a state, or of the sum of a state and what is added to the state.

        Returns:
            The normalized state, and the sum.
        """
        path = _path(weight)
        values = self._weights.read(f"{weight}.weight") + np.float32(self._shape.family.norm_offset)
        norm, scales = "SimplifiedLayerNormalization", [self._constant(f"{weight}.weight", values)]
        if self._shape.family.has_positions:
            bias = self._weights.read(f"{weight}.bias")
            norm, scales = "LayerNormalization", [*scales, self._constant(f"{weight}.bias", bias)]
        if not added:
            settings: dict[str, Any] = {"axis": -1, "stash_type": 1, "epsilon": self._shape.epsilon}
            size = self._shape.hidden
            return self._node(norm, f"{path}/LayerNorm", [state, *scales], size, **settings), state
        outputs = [f"{path}/output_0", "", "", f"{path}/output_3"][: 1 if is_last else 4]
        node = helper.make_node(
            f"Skip{norm}",
            [state, added, *scales],
            outputs,
            name=f"{path}/SkipLayerNorm",
            domain=MICROSOFT,
            epsilon=self._shape.epsilon,
        )
        self._nodes.append(node)
        for output in filter(None, outputs):
            self._note(output, self._shape.hidden)
        return outputs[0], outputs[-1]

    def _attend(self, layer: int, state: str) -> str:
        shape, path = self._shape, f"/model/layers.{layer}/attn"
        inputs = self._project(layer, state)
        window = shape.windows[layer]
        rotary = shape.rotary if window is None else shape.local_rotary
        attributes: dict[str, Any] = {"scale": shape.attention_scale or shape.head_size**-0.5}
        if window is not None and window < shape.context:
            attributes["local_window_size"] = window
        if shape.attention_cap:
            attributes["softcap"] = shape.attention_cap
        name = f"{path}/GroupQueryAttention"
        outputs = [f"{name}/output_0", f"present.{layer}.key", f"present.{layer}.value"]
        node = helper.make_node(
            "GroupQueryAttention",
            [
                *inputs,
                f"past_key_values.{layer}.key",
                f"past_key_values.{layer}.value",
                self._seqlens,
                self._total,
                *([] if shape.family.has_positions else self._tables(rotary)),
            ],
            outputs,
            name=name,
            domain=MICROSOFT,
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            do_rotary=int(not shape.family.has_positions),
            rotary_interleaved=0,
            **attributes,
        )
        self._nodes.append(node)
        self._note(outputs[0], shape.heads * shape.head_size)
        own = f"model.layers.{layer}.self_attn.o_proj"
        return self._product(f"{path}/o_proj", outputs[0], (own,), shape.hidden)

    def _project(self, layer: int, state: str) -> list[str]:
        """Return queries, keys and values: one tensor for all three, unless they are normalized."""
        shape, path = self._shape, f"/model/layers.{layer}/attn"
        own = f"model.layers.{layer}.self_attn"
        sizes = {
            "q": shape.heads * shape.head_size,
            "k": shape.kv_heads * shape.head_size,
            "v": shape.kv_heads * shape.head_size,
        }
        total = sum(sizes.values())
        if shape.family.is_fused:
            return [self._product(f"{path}/qkv_proj", state, (f"{own}.qkv_proj",), total), "", ""]
        names = [f"{own}.{part}_proj" for part in sizes]
        if f"{own}.q_norm.weight" not in self._weights:
            return [self._product(f"{path}/qkv_proj", state, tuple(names), total), "", ""]
        found = []
        for name, (part, size) in zip(names, sizes.items(), strict=True):
            output = self._product(f"{path}/{part}_proj", state, (name,), size)
            if part != "v":
                output = self._normalize_heads(f"{path}/{part}_norm", output, f"{own}.{part}_norm")
            found.append(output)
        return found

    def _normalize_heads(self, path: str, state: str, weight: str) -> str:
        """Write a norm of each head by itself."""
        shape = self._shape
        heads = self._constant(
            f"heads_of_{shape.head_size}", np.array([0, 0, -1, shape.head_size], np.int64)
        )
        whole = self._constant("whole", np.array([0, 0, -1], np.int64))
        values = self._weights.read(f"{weight}.weight") + np.float32(shape.family.norm_offset)
        scale = self._constant(f"{weight}.weight", values)
        divided = self._node("Reshape", f"{path}/Reshape_1", [state, heads])
        settings: dict[str, Any] = {"axis": -1, "stash_type": 1, "epsilon": shape.epsilon}
        norm = "SimplifiedLayerNormalization"
        normal = self._node(norm, f"{path}/{norm}", [divided, scale], **settings)
        return self._node("Reshape", f"{path}/Reshape_2", [normal, whole])

    def _multiply(self, layer: int, state: str) -> str:
        """Write the products behind attention, which most decoders gate."""
        shape, path = self._shape, f"/model/layers.{layer}/mlp"
        own, size = f"model.layers.{layer}.mlp", shape.intermediate
        if shape.family.has_positions:
            up = self._product(f"{path}/up_proj", state, (f"{own}.up_proj",), size)
            active = self._activate(f"{path}/act_fn", up, size)
            return self._product(f"{path}/down_proj", active, (f"{own}.down_proj",), shape.hidden)
        if shape.family.is_fused:
            both = f"{own}.gate_up_proj.weight"
            gate = self._product(f"{path}/gate_proj", state, (Rows(name=both, stop=size),), size)
            up = self._product(f"{path}/up_proj", state, (Rows(name=both, start=size),), size)
        else:
            gate = self._product(f"{path}/gate_proj", state, (f"{own}.gate_proj",), size)
            up = self._product(f"{path}/up_proj", state, (f"{own}.up_proj",), size)
        active = self._activate(f"{path}/act_fn", gate, size)
        product = self._node("Mul", f"{path}/Mul", [active, up], size)
        return self._product(f"{path}/down_proj", product, (f"{own}.down_proj",), shape.hidden)

    def _activate(self, path: str, gate: str, size: int) -> str:
        if self._shape.activation == "silu":
            half = self._node("Sigmoid", f"{path}/Sigmoid", [gate], size)
            return self._node("Mul", f"{path}/Mul", [gate, half], size)
        kind = "FastGelu" if self._shape.activation == "gelu_tanh" else "Gelu"
        return self._node(kind, f"{path}/{kind}", [gate], size, domain=MICROSOFT)

    def _score(self, state: str) -> None:
        shape = self._shape
        scores = "logits" if not shape.logits_cap else "/lm_head/MatMul/output_0"
        if shape.is_tied:
            node = helper.make_node(
                "FusedMatMul",
                [state, EMBEDDING],
                [scores],
                name="/lm_head/MatMul",
                domain=MICROSOFT,
                transB=1,
            )
        else:
            self._store("lm_head.MatMul.weight", (Rows(name=HEAD),), is_transposed=True)
            node = helper.make_node(
                "MatMul", [state, "lm_head.MatMul.weight"], [scores], name="/lm_head/MatMul"
            )
        self._nodes.append(node)
        if not shape.logits_cap:
            return
        self._note(scores, shape.vocabulary)
        cap = self._constant("logits_cap", np.float32(shape.logits_cap))
        path, size = "/lm_head/softcap", shape.vocabulary
        small = self._node("Div", f"{path}/Div", [scores, cap], size)
        bent = self._node("Tanh", f"{path}/Tanh", [small], size)
        self._nodes.append(helper.make_node("Mul", [bent, cap], ["logits"], name=f"{path}/Mul"))

    def _product(self, path: str, state: str, parts: tuple[str | Rows, ...], outputs: int) -> str:
        """Write a product by the transposed rows of stored weights, and their biases."""
        weight = f"{path[1:].replace('/', '.')}.MatMul.weight"
        rows = tuple(
            part if isinstance(part, Rows) else Rows(name=f"{part}.weight") for part in parts
        )
        self._store(weight, rows, is_transposed=True)
        self._note_product(path, rows)
        product = self._node("MatMul", f"{path}/MatMul", [state, weight], outputs)
        biases = [f"{part}.bias" for part in parts if isinstance(part, str)]
        if not any(name in self._weights for name in biases):
            return product
        bias = np.concatenate([self._weights.read(name) for name in biases])
        named = self._constant(f"{path[1:].replace('/', '.')}.Add.bias", bias)
        return self._node("Add", f"{path}/Add", [product, named], outputs)

    def _note_product(self, path: str, rows: tuple[Rows, ...]) -> None:
        """Note a product of the first layer as a place for adapters: all layers are alike."""
        layer, own = "/model/layers.0/", "model.layers.0."
        if not path.startswith(layer):
            return
        shapes = [self._weights.shape(part.name) for part in rows]
        parts = tuple(
            AdaptedPart(
                module=part.name.removeprefix(own).removesuffix(".weight"),
                first=part.start,
                size=len(range(*slice(part.start, part.stop).indices(shape[0]))),
            )
            for part, shape in zip(rows, shapes, strict=True)
        )
        path = path.replace(layer, "/model/layers.%d/")
        self._products.append(AdaptedProduct(path=path, inputs=shapes[0][1], parts=parts))

    def _tables(self, rotary: Rotary) -> list[str]:
        own = "" if rotary == self._shape.rotary else "_local"
        names = [f"cos_cache{own}", f"sin_cache{own}"]
        if names[0] not in self._known:
            for name, table in zip(names, self._rows(rotary), strict=True):
                self._put(name, list(table.shape), iter([table]))
        return names

    def _rows(self, rotary: Rotary) -> tuple[Singles, Singles]:
        """Return the tables of cosines and sines."""
        return rotary.tables(self._shape.context)

    def _store(self, name: str, parts: tuple[Rows, ...], *, is_transposed: bool) -> None:
        """Write a matrix to the file of the weights."""
        shapes = [self._weights.shape(part.name) for part in parts]
        rows = sum(
            len(range(*slice(part.start, part.stop).indices(shape[0])))
            for part, shape in zip(parts, shapes, strict=True)
        )
        dims = [shapes[0][1], rows] if is_transposed else [rows, shapes[0][1]]
        self._put(name, dims, self._weights.pieces(parts, is_transposed=is_transposed))

    def _put(self, name: str, dims: list[int], pieces: Iterator[Tensor]) -> None:
        self._file.write(bytes(-self._file.tell() % mmap.PAGESIZE))
        offset = self._file.tell()
        for piece in pieces:
            self._file.write(piece.data)
        tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
        stored_tensors.put(tensor, self._location, offset, self._file.tell() - offset)
        self._tensors.append(tensor)
        self._known.add(name)

    def _constant(self, name: str, values: Tensor | np.generic) -> str:
        """Add a small tensor, once."""
        if name not in self._known:
            self._tensors.append(numpy_helper.from_array(np.asarray(values), name))
            self._known.add(name)
        return name

    def _node(
        self,
        kind: str,
        name: str,
        inputs: list[str],
        size: int = 0,
        *,
        output: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node; `size` notes an output of [batch, steps, size] floats."""
        output = output or f"{name}/output_0"
        self._nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        if size:
            self._note(output, size)
        return output

    def _note(self, name: str, size: int) -> None:
        sizes: list[int | str] = [_BATCH, _STEPS, size]
        self._values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))


def _path(weight: str) -> str:
    return "/" + weight.replace(".", "/").replace("layers/", "layers.")
