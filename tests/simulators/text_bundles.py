"""Small models that write texts: a real decoder with GroupQueryAttention, and a tokenizer."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgepack.agent.runtime.opening import open_model_file
from edgepack.agent.state.pointer import ActivePointer
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.chunks import digest_file, entry
from edgepack.bundle.generation import GENAI_CONFIG, TOKENIZER, Generation
from edgepack.bundle.golden import Golden, Tensor, write_golden
from edgepack.bundle.keys import PrivateKey
from edgepack.bundle.manifest import (
    GOLDEN_FILE,
    MANIFEST_FILE,
    BundleFacts,
    GoldenTolerance,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from edgepack.bundle.signature import root_digest, sign_folder
from edgepack.bundle.tree import list_files
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice
from tests.simulators.manifests import CPU, make_variant

CONTEXT = 96
HEADS, KV_HEADS, HEAD, HIDDEN, LAYERS = 2, 1, 16, 32, 2
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
END = 256
"""Token that ends a text; tokens 0 to 255 are the bytes."""
VOCABULARY = 256 + len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer() -> str:
    """Return a tokenizer with a token for each byte, and the special tokens."""
    vocabulary = {letter: number for number, letter in _bytes_to_letters().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    text: str = tokenizer.to_str()
    return text


def make_decoder(
    seed: int, context: int = CONTEXT, *, forgets: bool = False, slow: str = ""
) -> onnx.ModelProto:
    """Return a decoder with random weights, as onnxruntime-genai's builder writes decoders.

    Args:
        seed: Of the weights.
        context: Positions that the rotary embedding has.
        forgets: Whether the graph reads no cache: it is right for whole texts only.
        slow: `prompt` or `token`: inferences of several tokens, or of one, take a hundred times as
            long.
    """
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int, scale: float = 0.0) -> str:
        scale = scale or shape[0] ** -0.5
        weights[name] = (rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    half = np.arange(HEAD // 2) / (HEAD // 2)
    angles = np.outer(np.arange(context), 10000.0**-half)
    weights["cos"], weights["sin"] = np.cos(angles, dtype=None), np.sin(angles)
    weights |= {name: weights[name].astype(np.float32) for name in ("cos", "sin")}
    integers = {"one": np.array([1]), "first": np.array([0]), "axis": np.array(1)}
    length = "same_mask" if forgets else "attention_mask"
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Equal", ["ids", "ids"], ["same"]),
        helper.make_node("Cast", ["same"], ["same_mask"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", [length, "one"], ["sum"], keepdims=1),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", [length], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "axis"], ["total"], axis=0),
        helper.make_node("Cast", ["total"], ["total_length"], to=TensorProto.INT32),
        helper.make_node(
            "Gather", [weight("embedding", VOCABULARY, HIDDEN, scale=1.0), "input_ids"], ["h"]
        ),
    ]
    hidden = "h"
    for layer in range(LAYERS):
        p = f"l{layer}."
        weights[p + "norm"] = weights[p + "norm2"] = np.ones(HIDDEN, np.float32)

        def node(kind: str, inputs: list[str], output: str, **rest: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, [output], **rest))
            return output

        normed = node(
            "SimplifiedLayerNormalization", [hidden, p + "norm"], p + "n", epsilon=1e-5, axis=-1
        )
        sizes = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}
        q, k, v = (
            node("MatMul", [normed, weight(p + one, HIDDEN, size)], p + one + "out")
            for one, size in sizes.items()
        )
        cache = [f"past_key_values.{layer}.key", f"past_key_values.{layer}.value"]
        nodes.append(
            helper.make_node(
                "GroupQueryAttention",
                [q, k, v, *cache, "seqlens", "total_length", "cos", "sin"],
                [p + "attended", f"present.{layer}.key", f"present.{layer}.value"],
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            )
        )
        out = node("MatMul", [p + "attended", weight(p + "o", HEADS * HEAD, HIDDEN)], p + "oout")
        hidden = node("Add", [hidden, out], p + "added")
        normed = node(
            "SimplifiedLayerNormalization", [hidden, p + "norm2"], p + "n2", epsilon=1e-5, axis=-1
        )
        wide = node("MatMul", [normed, weight(p + "up", HIDDEN, 64)], p + "upout")
        wide = node("Relu", [wide], p + "relu")
        out = node("MatMul", [wide, weight(p + "down", 64, HIDDEN)], p + "downout")
        hidden = node("Add", [hidden, out], p + "out")
    nodes.append(
        helper.make_node(
            "MatMul",
            [hidden, weight("head", HIDDEN, VOCABULARY, scale=0.2)],
            ["made" if slow else "logits"],
        )
    )
    if slow:
        weights["square"] = np.full((400, 400), 1e-3, np.float32)
        integers["steps"] = np.array(1)
        nodes += _slow_nodes(slow)
    past = [
        helper.make_tensor_value_info(
            f"{kind}.{layer}.{part}", TensorProto.FLOAT, ["batch", KV_HEADS, length, HEAD]
        )
        for kind, length in (
            ("past_key_values", "past"),
            ("present", "total"),
        )
        for layer in range(LAYERS)
        for part in ("key", "value")
    ]
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
        for name, length in (("input_ids", "steps"), ("attention_mask", "total"))
    ]
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT, ["batch", "steps", VOCABULARY]
    )
    initializers = [
        *(numpy_helper.from_array(value, name) for name, value in weights.items()),
        *(
            numpy_helper.from_array(value.astype(np.int64), name)
            for name, value in integers.items()
        ),
    ]
    number = 2 * LAYERS
    graph = helper.make_graph(
        nodes, "decoder", [*ids, *past[:number]], [logits, *past[number:]], initializers
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _slow_nodes(slow: str) -> list[onnx.NodeProto]:
    """Return nodes that write `logits` from `made`, and work long at some lengths."""
    same = helper.make_node("Identity", ["made"], ["same_logits"])
    work = [helper.make_node("ReduceMax", ["made"], ["w0"], keepdims=0)]
    work += [helper.make_node("Mul", ["square", "w0"], ["w1"])]
    work += [helper.make_node("MatMul", [f"w{at}", "square"], [f"w{at + 1}"]) for at in range(1, 9)]
    work += [
        helper.make_node("ReduceMax", ["w9"], ["most"], keepdims=0),
        helper.make_node("Sub", ["most", "most"], ["nothing"]),
        helper.make_node("Add", ["made", "nothing"], ["worked_logits"]),
    ]
    branches = [
        helper.make_graph(body, name, [], [helper.make_empty_tensor_value_info(name)])
        for body, name in (([same], "same_logits"), (work, "worked_logits"))
    ]
    at_one, at_several = branches if slow == "prompt" else branches[::-1]
    return [
        helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
        helper.make_node("Gather", ["ids_shape", "steps"], ["number"], axis=0),
        helper.make_node("Equal", ["number", "axis"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["logits"], then_branch=at_one, else_branch=at_several),
    ]


def make_config(**changes: object) -> str:
    """Return a `genai_config.json`, with changes of `model`."""
    config = {
        "model": {
            "bos_token_id": END,
            "eos_token_id": [END],
            "pad_token_id": END,
            "context_length": CONTEXT,
            "vocab_size": VOCABULARY,
            "type": "llama",
            "decoder": {
                "filename": "model/cpu/model.onnx",
                "head_size": HEAD,
                "hidden_size": HIDDEN,
                "num_attention_heads": HEADS,
                "num_key_value_heads": KV_HEADS,
                "num_hidden_layers": LAYERS,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
            **changes,
        },
        "search": {"do_sample": False, "past_present_share_buffer": True},
    }
    return json.dumps(config)


def make_assets(**changes: object) -> dict[str, str]:
    """Return the files for texts, by name."""
    return {
        GENAI_CONFIG: make_config(**changes),
        TOKENIZER: make_tokenizer(),
        "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "eos_token": "<|end|>"}),
    }


def make_text_bundle(
    folder: Path,
    key: PrivateKey | None = None,
    *,
    release: int = 1,
    name: str = "chat",
    version: str = "",
    assets: Mapping[str, str] | None = None,
    context: int = CONTEXT,
    forgets: bool = False,
    variants: Mapping[str, str] = {"cpu": ""},
) -> Path:
    """Build a bundle whose model writes texts, and return its folder.

    Args:
        folder: Is made.
        key: Signs; None leaves the bundle unsigned.
        release: Seed of the weights, and the version `1.<release>.0`.
        name: Of the model.
        version: In place of that version.
        assets: Files for texts; None takes the usual files.
        context: Tokens of a text.
        forgets: Whether the graph reads no cache.
        variants: Names, each with `slow` of `make_decoder`.
    """
    paths = []
    for name_of_variant, slow in variants.items():
        variant = make_variant(name_of_variant)
        path = folder / variant.folder / variant.model_file
        path.parent.mkdir(parents=True)
        onnx.save(make_decoder(release, context, forgets=forgets, slow=slow), path)
        paths.append(path)
    path = paths[0]
    feeds = tuple(_golden_feeds(text) for text in ("the first text", "another one"))
    session = open_model_file(path, threads=1)
    outputs: tuple[dict[str, Tensor], ...] = tuple(session.run(one) for one in feeds)
    (folder / GOLDEN_FILE).parent.mkdir()
    write_golden(folder / GOLDEN_FILE, Golden(inputs=feeds, outputs=outputs))
    shared = [GOLDEN_FILE]
    for asset, content in (assets or make_assets(context_length=context)).items():
        (folder / asset).write_text(content)
        shared.append(asset)
    facts = BundleFacts(
        name=name,
        version=version or f"1.{release}.0",
        release=release,
        source_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        files=tuple(entry(folder, one) for one in shared),
        generation=Generation(
            context=context,
            vocabulary=VOCABULARY,
            cache_bytes_per_token=4 * 2 * LAYERS * KV_HEADS * HEAD,
            prompts=len(feeds),
        ),
    )
    tolerances = {"logits": GoldenTolerance(cosine_min=0.99, nrmse_max=0.1)}
    built = []
    for variant in map(make_variant, variants):
        files = (entry(folder, f"{variant.folder}/{variant.model_file}"),)
        own = replace(variant.facts, files=files, tolerances=tolerances)
        built.append(replace(variant, facts=own))
    manifest = Manifest(facts=facts, variants=tuple(built))
    (folder / MANIFEST_FILE).write_bytes(encode_manifest(manifest))
    if key is not None:
        sign_folder(folder, key)
    return folder


def install_texts(state_dir: Path, bundle: Path) -> ActivePointer:
    """Copy a bundle to a slot, and return the slot's pointer."""
    digest = root_digest({path: digest_file(bundle / path) for path in list_files(bundle)})
    shutil.copytree(bundle, slot_folder(state_dir, digest), dirs_exist_ok=True)
    manifest = decode_manifest((bundle / MANIFEST_FILE).read_bytes())
    facts, chosen = manifest.facts, manifest.variants[0].name
    return ActivePointer(
        bundle=BundleRef(
            name=facts.name, version=facts.version, release=facts.release, digest=digest
        ),
        choice=Choice(wanted="", chosen=chosen, provider=CPU, because="test", is_fallback=False),
        since=float(facts.release),
        committed=False,
    )


def encode(text: str) -> list[int]:
    return list(text.encode())


def chat_tokens(messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the tokens of messages by the template."""
    tokens: list[int] = []
    for message in messages:
        tokens += [VOCABULARY - 2 if message["role"] == "user" else VOCABULARY - 1]
        tokens += [*encode(message["content"]), END]
    return [*tokens, VOCABULARY - 1]


def _golden_feeds(text: str) -> dict[str, Tensor]:
    ids = np.array([encode(text)], np.int64)
    empty = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
    cache = {
        f"past_key_values.{layer}.{part}": empty
        for layer in range(LAYERS)
        for part in ("key", "value")
    }
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), **cache}


def _bytes_to_letters() -> dict[int, str]:
    """Return the letter of each byte, as byte-level tokenizers write bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {number: chr(number) for number in plain}
    others = [number for number in range(256) if number not in letters]
    return letters | {number: chr(256 + at) for at, number in enumerate(others)}
