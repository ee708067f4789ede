"""A small transformer that generates tokens, with drawn weights and a cache.

Its words follow each other by a drawn table, and earlier words shift the table a little: so its
choices are mostly clear, like a trained model's, and depend on the cache.
"""

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from tests.graphs import graph_model

WORDS, WIDTH, HEADS, LAYERS, PLACES = 96, 64, 4, 2, 256
_OF_HEAD = WIDTH // HEADS

Feeds = dict[str, npt.NDArray[np.generic]]


def draw_decoder(*, past: int | None = None, memory: float = 1.0) -> onnx.ModelProto:
    """Return the model.

    Args:
        past: Places of the cache for fixed sizes with a token a step; else sizes are open.
        memory: Influence of earlier words.
    """
    step, before, after = ("1", past, past + 1) if past else ("S", "P", "T")
    caches = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    size = f"float[1,{HEADS},{{}},{_OF_HEAD}]"
    inputs = [
        f"int64[1,{step}] input_ids, int64[1,{after}] attention_mask, int64[1,{step}] position_ids",
        *(f'{size.format(before)} "past_key_values.{cache}"' for cache in caches),
    ]
    outputs = [
        f"float[1,{step},{WORDS}] logits",
        *(f'{size.format(after)} "present.{cache}"' for cache in caches),
    ]
    nodes = [_BEGIN, *map(_layer, range(LAYERS)), _END]
    text = f"({', '.join(inputs)}) => ({', '.join(outputs)}) {{ {' '.join(nodes)} }}"
    return graph_model(text, _weights(memory))


def without_caches(model: onnx.ModelProto, *, backwards: bool = False) -> onnx.ModelProto:
    """Return the same as a model that reads the whole text at each step.

    Args:
        model: With open sizes; changed.
        backwards: Each token also sees later tokens, as in a model that fills gaps.
    """
    graph = model.graph
    for cache in [value for value in graph.input if value.name.startswith("past")]:
        empty = np.zeros((1, HEADS, 0, _OF_HEAD), np.float32)
        graph.initializer.append(numpy_helper.from_array(empty, cache.name))
        graph.input.remove(cache)
    del graph.output[1:]
    if backwards:
        (causal,) = (node for node in graph.node if node.output[0] == "is_seen")
        causal.input[0] = "is_used"
    return model


def prompts(count: int, *, seed: int = 0, longest: int = 12) -> list[Feeds]:
    """Return samples with several tokens and an empty cache."""
    rng = np.random.default_rng(seed)
    return [_prompt(rng.integers(0, WORDS, rng.integers(3, longest))) for _ in range(count)]


def single_steps(count: int, past: int, *, seed: int = 0) -> list[Feeds]:
    """Return samples of a single token, with an empty cache of fixed size."""
    rng = np.random.default_rng(seed)
    samples = []
    for token in rng.choice(WORDS, count, replace=False):
        mask = np.zeros((1, past + 1), np.int64)
        mask[0, -1] = 1
        samples.append(_prompt(np.array([token]), past) | {"attention_mask": mask})
    return samples


def _prompt(tokens: npt.NDArray[np.int64], past: int = 0) -> Feeds:
    empty = np.zeros((1, HEADS, past, _OF_HEAD), np.float32)
    return {
        "input_ids": tokens[None],
        "attention_mask": np.ones((1, len(tokens)), np.int64),
        "position_ids": np.arange(len(tokens))[None],
        **{
            f"past_key_values.{layer}.{kind}": empty
            for layer in range(LAYERS)
            for kind in ("key", "value")
        },
    }


def _weights(memory: float) -> dict[str, npt.NDArray[np.generic]]:
    rng = np.random.default_rng(7)

    def normal(*shape: int, size: float = 1.0) -> npt.NDArray[np.float32]:
        return (rng.standard_normal(shape) * size).astype(np.float32)

    words = normal(WORDS, WIDTH)
    weights: dict[str, npt.NDArray[np.generic]] = {
        "words": words,
        "places": normal(PLACES, WIDTH, size=0.1),
        "to_scores": np.ascontiguousarray(words[rng.permutation(WORDS)].T) / np.float32(WIDTH**0.5),
        "ones": np.ones(WIDTH, np.float32),
        "zeros": np.zeros(WIDTH, np.float32),
        "apart": np.array([0, 0, HEADS, _OF_HEAD]),
        "joined": np.array([0, 0, WIDTH]),
        "root": np.array(_OF_HEAD**-0.5, np.float32),
        "hidden": np.array(-1e4, np.float32),
        "nothing": np.array(0.0, np.float32),
        "zero": np.array(0),
        "one": np.array(1),
        "axes": np.array([0, 1]),
        "second": np.array([1]),
    }
    for layer in range(LAYERS):
        for name in ("q", "k", "v", "o"):
            size = memory if name == "o" else 1.0
            weights[f"{name}{layer}"] = normal(WIDTH, WIDTH, size=size * WIDTH**-0.5)
        weights[f"up{layer}"] = normal(WIDTH, 2 * WIDTH, size=WIDTH**-0.5)
        weights[f"down{layer}"] = normal(2 * WIDTH, WIDTH, size=0.3 * WIDTH**-0.5)
    return weights


def _layer(number: int) -> str:
    return _LAYER.replace("NEXT#", f"h{number + 1}").replace("#", str(number))


_BEGIN = """
word = Gather(words, input_ids) place = Gather(places, position_ids) h0 = Add(word, place)
size = Shape(attention_mask) ids_size = Shape(input_ids)
all = Gather(size, one) new = Gather(ids_size, one) old = Sub(all, new)
at_key = Range(zero, all, one) query = Range(old, all, one) at_query = Unsqueeze(query, second)
is_before = LessOrEqual(at_key, at_query) is_used = Cast<to=9>(attention_mask)
is_seen = And(is_before, is_used) offset = Where(is_seen, nothing, hidden)
mask = Unsqueeze(offset, axes)
"""

_LAYER = """
n# = LayerNormalization(h#, ones, zeros)
aq# = MatMul(n#, q#) bq# = Reshape(aq#, apart) cq# = Transpose<perm=[0,2,1,3]>(bq#)
ak# = MatMul(n#, k#) bk# = Reshape(ak#, apart) ck# = Transpose<perm=[0,2,1,3]>(bk#)
av# = MatMul(n#, v#) bv# = Reshape(av#, apart) cv# = Transpose<perm=[0,2,1,3]>(bv#)
"present.#.key" = Concat<axis=2>("past_key_values.#.key", ck#)
"present.#.value" = Concat<axis=2>("past_key_values.#.value", cv#)
kt# = Transpose<perm=[0,1,3,2]>("present.#.key") raw# = MatMul(cq#, kt#)
scaled# = Mul(raw#, root) masked# = Add(scaled#, mask) shares# = Softmax<axis=-1>(masked#)
read# = MatMul(shares#, "present.#.value") turned# = Transpose<perm=[0,2,1,3]>(read#)
flat# = Reshape(turned#, joined) said# = MatMul(flat#, o#) g# = Add(h#, said#)
m# = LayerNormalization(g#, ones, zeros) u# = MatMul(m#, up#) r# = Relu(u#)
d# = MatMul(r#, down#) NEXT# = Add(g#, d#)
"""

_END = f"end = LayerNormalization(h{LAYERS}, ones, zeros) logits = MatMul(end, to_scores)"
