"""Write a Llama folder as GGUF, in the environment of llama.cpp: `write_gguf.py FOLDER FILE FORM`.

ggml quantizes the tensors. `Q4_0` has an output of 8 bits, like llama.cpp's
`--output-tensor-type q8_0`. `Q4_K_M` follows llama.cpp's rule: 6 bits for the output, and for the
values and down projections of the first and last eighth of the layers and of every third between;
5 or 8 bits for rows that are no multiple of 256.
"""

import ctypes
import json
import sys
from pathlib import Path

import gguf
import libggml
import numpy as np
from safetensors.numpy import load_file

Type = gguf.GGMLQuantizationType
FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
    "Q4_K_M": gguf.LlamaFileType.MOSTLY_Q4_K_M,
}
SUPER_BLOCK = 256
NARROW = {Type.Q4_K: Type.Q5_0, Type.Q6_K: Type.Q8_0}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

_ggml = ctypes.CDLL(str(Path(libggml.__file__).parent / "lib64" / "libggml-base.so"))
_ggml.ggml_quantize_chunk.restype = ctypes.c_size_t


def name_of(name: str) -> str:
    """Return the name of a tensor in GGUF."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, _, part = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{LAYER_NAMES[part.removesuffix('.weight')]}.weight"


def type_of(name: str, columns: int, layers: int, form: str) -> Type:
    """Return the type of a matrix; see above."""
    if form == "F32":
        return Type.F32
    if form == "Q4_0":
        return Type.Q8_0 if name == "token_embd.weight" else Type.Q4_0
    kind = Type.Q6_K if name == "token_embd.weight" else Type.Q4_K
    if "attn_v" in name or "ffn_down" in name:
        layer = int(name.split(".")[1])
        eighth = layers // 8
        is_outer = layer < eighth or layer >= 7 * layers // 8
        if is_outer or (layer - eighth) % 3 == 2:
            kind = Type.Q6_K
    return NARROW[kind] if columns % SUPER_BLOCK else kind


def quantize(values: np.ndarray, kind: Type) -> np.ndarray:
    """Return the bytes of a quantized matrix, uint8 (rows, bytes of a row)."""
    rows, columns = values.shape
    block, size = gguf.GGML_QUANT_SIZES[kind]
    packed = np.empty((rows, columns // block * size), np.uint8)
    written = _ggml.ggml_quantize_chunk(
        ctypes.c_int(kind),
        values.ctypes.data_as(ctypes.c_void_p),
        packed.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(0),
        ctypes.c_int64(rows),
        ctypes.c_int64(columns),
        None,
    )
    assert written == packed.nbytes
    return packed


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """Return queries or keys in the order in which llama.cpp rotates pairs: neighbours."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def write(folder: Path, file: Path, form: str) -> None:
    """Write the file."""
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(FILE_TYPES[form])
    words = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [word for word, _ in words]
    tokens += [f"<|unused{number}|>" for number in range(config["vocab_size"] - len(tokens))]
    merges = tokenizer["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    for stored, values in load_file(folder / "model.safetensors").items():
        name, single = name_of(stored), np.ascontiguousarray(values, np.float32)
        for part, count in (("attn_q.", heads), ("attn_k.", kv_heads)):
            if part in name:
                single = permute(single, count)
        kind = type_of(name, single.shape[-1], layers, form) if single.ndim == 2 else Type.F32
        if kind is Type.F32:
            writer.add_tensor(name, single)
        else:
            writer.add_tensor(name, quantize(single, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def restore(file: Path, folder: Path, output: Path) -> None:
    """Write the quantized weights as floats under the folder's names, for the float graph."""
    config = json.loads((folder / "config.json").read_text())
    names = {name_of(stored): stored for stored in load_file(folder / "model.safetensors")}
    found = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for part, key in (("attn_q.", "num_attention_heads"), ("attn_k.", "num_key_value_heads")):
            if part in tensor.name:
                pairs = values.reshape(config[key], len(values) // config[key] // 2, 2, -1)
                values = pairs.swapaxes(1, 2).reshape(values.shape)
        found[names[tensor.name]] = np.ascontiguousarray(values, np.float32)
    np.savez(output, **found)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    if len(sys.argv) > 4:
        restore(Path(sys.argv[2]), Path(sys.argv[1]), Path(sys.argv[4]))
