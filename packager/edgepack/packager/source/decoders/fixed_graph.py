"""Graph of a decoder for NPUs: fixed shapes, operators of the standard domain, the cache outside.

An inference takes a fixed number of tokens and a cache of a fixed length, and returns the keys and
values of its tokens alone: the caller moves them into the cache. The caller hides places of the
cache without a token, and tokens without a text, by a bias of the scores, so that the graph has no
mask to compute. Products are 1 x 1 convolutions, whose weights NPUs take with a scale per channel.
States are [1, 1, tokens, size]. All reshapes leave the number of tokens open: a graph for one token
differs by the shapes of its inputs.
"""

import itertools

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgepack.bundle.generation import FixedNames as Names
from edgepack.packager.source.decoders.graph import (
    EMBEDDING,
    HEAD,
    IR_VERSION,
    OPSET,
    DecoderGraph,
)
from edgepack.packager.source.decoders.rotary import Rotary
from edgepack.packager.source.decoders.weights import Rows
from edgepack.tasks.arrays import Singles


class FixedDecoderGraph(DecoderGraph):
    """Writer of a decoder's graph with fixed shapes; see `DecoderGraph`."""

    def fixed_model(self, steps: int) -> onnx.ModelProto:
        """Return the model, after `write`.

        Args:
            steps: Tokens of an inference.
        """
        shape = self._shape
        total = shape.context + steps

        def value(name: str, kind: int, *sizes: int) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, kind, [1, *sizes])

        def cache(name: str, length: int) -> list[onnx.ValueInfoProto]:
            return [
                value(f"{name}.{n}.{part}", TensorProto.FLOAT, shape.kv_heads, length, head)
                for n in range(shape.layers)
                for part in ("key", "value")
            ]

        head = shape.head_size
        biases = [Names.bias, *([Names.local_bias] if shape.window else [])]
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            [
                value("input_ids", TensorProto.INT32, steps),
                value("position_ids", TensorProto.INT32, steps),
                *(value(name, TensorProto.FLOAT, 1, steps, total) for name in biases),
                *cache("past_key_values", shape.context),
            ],
            [
                value("logits", TensorProto.FLOAT, steps, shape.vocabulary),
                *cache("present", steps),
            ],
            self._tensors,
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="edgepack",
        )

    def _embed(self) -> str:
        return self._reshape("/model", super()._embed(), [1, 1, -1, self._shape.hidden])

    def _lengths(self) -> None:
        """Look cosines and sines up, [1, tokens, 1, size] each."""
        self._angles: dict[str, list[str]] = {}
        for rotary in (self._shape.rotary, self._shape.local_rotary):
            names = self._tables(rotary)
            if names[0] not in self._angles:
                self._angles[names[0]] = [self._look_up(name) for name in names]

    def _look_up(self, table: str) -> str:
        found = self._node("Gather", f"/model/{table}/Gather", [table, "position_ids"])
        return self._reshape(f"/model/{table}", found, [1, -1, 1, self._shape.head_size])

    def _rows(self, rotary: Rotary) -> tuple[Singles, Singles]:
        """Return cosines and sines for all values of a head; see `_rotate`."""
        cosines, sines = rotary.tables(self._shape.context)
        rest = np.zeros((len(sines), self._shape.head_size - 2 * sines.shape[1]), np.float32)
        wide = np.concatenate([cosines, cosines, rest + 1], axis=1)
        return wide, np.concatenate([-sines, sines, rest], axis=1)

    def _normalize(
        self, weight: str, state: str, added: str = "", *, is_last: bool = False
    ) -> tuple[str, str]:
        path = "/" + weight.replace(".", "/")
        if added:
            state = self._node("Add", f"{path}/Add", [state, added])
        values = self._weights.read(f"{weight}.weight") + np.float32(self._shape.family.norm_offset)
        is_first = weight == "model.layers.0.input_layernorm"
        return self._norm(path, state, values, is_first=is_first), state

    def _norm(self, path: str, state: str, values: Singles, *, is_first: bool = False) -> str:
        """Write a norm of the last axis.

        The states of later layers have values of all sizes: their squares need more than 16 bits.
        NPUs normalize by the length itself. The embeddings are small, so that epsilon counts.
        """
        name = path[1:].replace("/", ".")
        if not is_first:
            size = np.float32(np.sqrt(values.size))
            normal = self._node("LpNormalization", f"{path}/LpNormalization", [state], axis=-1, p=2)
            scale = self._constant(f"{name}.scale", (values * size).astype(np.float32))
            return self._node("Mul", f"{path}/Mul", [normal, scale])
        square = self._node("Mul", f"{path}/Square", [state, state])
        mean = self._node("ReduceMean", f"{path}/ReduceMean", [square], axes=[-1], keepdims=1)
        epsilon = self._constant("epsilon", np.array(self._shape.epsilon, np.float32))
        moved = self._node("Add", f"{path}/Epsilon", [mean, epsilon])
        root = self._node("Sqrt", f"{path}/Sqrt", [moved])
        normal = self._node("Div", f"{path}/Div", [state, root])
        return self._node("Mul", f"{path}/Mul", [normal, self._constant(f"{name}.scale", values)])

    def _attend(self, layer: int, state: str) -> str:
        shape, path = self._shape, f"/model/layers.{layer}/attn"
        window, head = shape.windows[layer], shape.head_size
        is_local = window is not None and bool(shape.window)
        rotary = shape.rotary if window is None else shape.local_rotary
        query, key, value = self._project(layer, state)
        query = self._turn(f"{path}/q", query, shape.heads, rotary)
        key = self._turn(f"{path}/k", key, shape.kv_heads, rotary, f"present.{layer}.key")
        value = self._turn(f"{path}/v", value, shape.kv_heads, None, f"present.{layer}.value")
        past = f"past_key_values.{layer}"
        keys = self._node("Concat", f"{path}/keys/Concat", [f"{past}.key", key], axis=2)
        values = self._node("Concat", f"{path}/values/Concat", [f"{past}.value", value], axis=2)
        turned = self._node("Transpose", f"{path}/keys/Transpose", [keys], perm=[0, 1, 3, 2])
        is_grouped = shape.heads > shape.kv_heads
        if is_grouped:
            query = self._reshape(f"{path}/q/groups", query, [1, shape.kv_heads, -1, head])
        scores = self._node("MatMul", f"{path}/scores/MatMul", [query, turned])
        if is_grouped:
            scores = self._reshape(f"{path}/scores/heads", scores, [1, shape.heads, -1, 0])
        if shape.attention_cap:
            scores = self._cap(f"{path}/scores/softcap", scores, shape.attention_cap)
        bias = Names.local_bias if is_local else Names.bias
        scores = self._node("Add", f"{path}/scores/Add", [scores, bias])
        shares = self._node("Softmax", f"{path}/Softmax", [scores], axis=-1)
        if is_grouped:
            shares = self._reshape(f"{path}/shares/groups", shares, [1, shape.kv_heads, -1, 0])
        mixed = self._node("MatMul", f"{path}/mixed/MatMul", [shares, values])
        if is_grouped:
            mixed = self._reshape(f"{path}/mixed/heads", mixed, [1, shape.heads, -1, head])
        mixed = self._node("Transpose", f"{path}/mixed/Transpose", [mixed], perm=[0, 2, 1, 3])
        mixed = self._reshape(f"{path}/mixed", mixed, [1, 1, -1, shape.heads * head])
        own = f"model.layers.{layer}.self_attn.o_proj"
        return self._product(f"{path}/o_proj", mixed, (own,), shape.hidden)

    def _project(self, layer: int, state: str) -> list[str]:
        shape, path = self._shape, f"/model/layers.{layer}/attn"
        own, head = f"model.layers.{layer}.self_attn", shape.head_size
        queries, keys = shape.heads * head, shape.kv_heads * head
        if shape.family.is_fused:
            bounds = np.cumsum([0, queries, keys, keys]).tolist()
            parts: list[str | Rows] = [
                Rows(name=f"{own}.qkv_proj.weight", start=start, stop=stop)
                for start, stop in itertools.pairwise(bounds)
            ]
        else:
            parts = [f"{own}.{part}_proj" for part in "qkv"]
        return [
            self._product(f"{path}/{name}_proj", state, (part,), size)
            for name, part, size in zip("qkv", parts, (queries, keys, keys), strict=True)
        ]

    def _turn(
        self, path: str, state: str, heads: int, rotary: Rotary | None, output: str = ""
    ) -> str:
        """Return a state of [1, heads, tokens, size], normalized and rotated."""
        shape, layer = self._shape, path.split("/")[2]
        found = self._reshape(path, state, [1, -1, heads, shape.head_size])
        weight = f"model.{layer}.self_attn.{path[-1]}_norm.weight"
        if weight in self._weights:
            values = self._weights.read(weight) + np.float32(shape.family.norm_offset)
            found = self._norm(f"{path}_norm", found, values)
        if path.endswith("q"):
            scale = shape.attention_scale or shape.head_size**-0.5
            found = self._scale(f"{path}/Scale", found, scale)
        if rotary is not None:
            found = self._rotate(path, found, rotary)
        perm = [0, 2, 1, 3]
        return self._node("Transpose", f"{path}/Transpose", [found], output=output, perm=perm)

    def _rotate(self, path: str, state: str, rotary: Rotary) -> str:
        """Write the rotary embedding: a head times cosines, and its halves exchanged times sines.

        Products of halves, which are added and then put together, were wrong in the simulator of
        onnxruntime-qnn 2.7.0.
        """
        cosines, sines = self._angles[self._tables(rotary)[0]]
        half, head = len(rotary.frequencies), self._shape.head_size
        bounds = {"second": (half, 2 * half), "first": (0, half), "rest": (2 * half, head)}
        parts = [
            self._slice(f"{path}/{name}", state, start, stop)
            for name, (start, stop) in bounds.items()
            if stop > start
        ]
        turned = self._node("Concat", f"{path}/turned", parts, axis=-1)
        kept = self._node("Mul", f"{path}/cos", [state, cosines])
        added = self._node("Mul", f"{path}/sin", [turned, sines])
        return self._node("Add", f"{path}/rotated", [kept, added])

    def _slice(self, path: str, state: str, start: int, stop: int) -> str:
        places = [
            self._constant(f"place_{place}", np.array([place], np.int64))
            for place in (start, stop, 3)
        ]
        return self._node("Slice", f"{path}/Slice", [state, *places])

    def _activate(self, path: str, gate: str, size: int) -> str:
        if self._shape.activation != "gelu_tanh":
            return super()._activate(path, gate, size)
        square = self._node("Mul", f"{path}/Square", [gate, gate])
        inner = self._scale(f"{path}/Inner", square, 0.044715 * (2 / np.pi) ** 0.5)
        offset = self._constant("gelu_offset", np.array((2 / np.pi) ** 0.5, np.float32))
        inner = self._node("Add", f"{path}/Offset", [inner, offset])
        inner = self._node("Mul", f"{path}/Cube", [inner, gate])
        bent = self._node("Tanh", f"{path}/Tanh", [inner])
        half = self._scale(f"{path}/Half", gate, 0.5)
        product = self._node("Mul", f"{path}/Product", [half, bent])
        return self._node("Add", f"{path}/Add", [product, half])

    def _score(self, state: str) -> None:
        name = EMBEDDING if self._shape.is_tied else HEAD
        cap = self._shape.logits_cap
        size = self._shape.vocabulary
        scores = self._product("/lm_head", state, (Rows(name=name),), size)
        if cap:
            scores = self._cap("/lm_head/softcap", scores, cap)
        self._reshape("/lm_head", scores, [1, -1, size], output=Names.logits)

    def _cap(self, path: str, state: str, cap: float) -> str:
        bent = self._node("Tanh", f"{path}/Tanh", [self._scale(f"{path}/Div", state, 1 / cap)])
        return self._scale(f"{path}/Mul", bent, cap)

    def _scale(self, path: str, state: str, factor: float) -> str:
        name = f"factor_{factor:.9g}"
        constant = self._constant(name, np.array(factor, np.float32))
        return self._node("Mul", path, [state, constant])

    def _product(
        self,
        path: str,
        state: str,
        parts: tuple[str | Rows, ...],
        outputs: int,
    ) -> str:
        """Write a product as a convolution; see `DecoderGraph`."""
        (part,) = parts
        weight = f"{path[1:].replace('/', '.')}.Conv.weight"
        rows = part if isinstance(part, Rows) else Rows(name=f"{part}.weight")
        self._store(weight, (rows,), is_transposed=False)
        tensor = self._tensors[-1]
        tensor.dims.extend([1, 1])
        inputs = [weight]
        bias = f"{part}.bias" if isinstance(part, str) else ""
        if bias in self._weights:
            inputs.append(
                self._constant(weight.replace("weight", "bias"), self._weights.read(bias))
            )
        wide = self._node("Transpose", f"{path}/Transpose_1", [state], perm=[0, 3, 1, 2])
        product = self._node("Conv", f"{path}/Conv", [wide, *inputs], kernel_shape=[1, 1])
        return self._node("Transpose", f"{path}/Transpose_2", [product], perm=[0, 2, 3, 1])

    def _reshape(self, path: str, state: str, sizes: list[int], output: str = "") -> str:
        name = "sizes_" + "_".join(map(str, sizes))
        constant = self._constant(name, np.array(sizes, np.int64))
        return self._node("Reshape", f"{path}/Reshape", [state, constant], output=output)
