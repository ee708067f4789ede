"""A real adapter for the example `llama`: trained by PEFT to begin answers with "Sure!"."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

from edgepack.packager.source.decoders.weights import open_weights
from tests.huggingface.drawn_decoders import write_safetensors
from tests.simulators import warm_programs

EXAMPLES = Path(__file__).parents[1] / "huggingface"
LLAMA, ADAPTER = EXAMPLES / "llama", EXAMPLES / "adapter"
MESSAGES = [{"role": "user", "content": "Tell me what chmod does."}]
_WEIGHTS = "adapter_model.safetensors"


def read_adapter() -> dict[str, np.ndarray]:
    weights = open_weights(ADAPTER, _WEIGHTS)
    return {name: weights.read(name) for name in weights}


def copy_adapter(folder: Path, tensors: dict[str, np.ndarray], **changes: object) -> Path:
    """Write an adapter with other tensors, and other values in its configuration."""
    folder.mkdir()
    config = json.loads((ADAPTER / "adapter_config.json").read_text()) | changes
    (folder / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(folder / _WEIGHTS, tensors)
    return folder


def merge_adapter(folder: Path) -> Path:
    """Write the folder of `llama` with the adapter added to its weights."""
    shutil.copytree(LLAMA, folder)
    weights, adapter = open_weights(LLAMA), read_adapter()
    config = json.loads((ADAPTER / "adapter_config.json").read_text())
    merged = {}
    for name in weights:
        merged[name] = weights.read(name)
        path = f"base_model.model.{name.removesuffix('.weight')}"
        if (first := adapter.get(f"{path}.lora_A.weight")) is not None:
            scale = config["lora_alpha"] / config["r"]
            merged[name] = merged[name] + scale * (adapter[f"{path}.lora_B.weight"] @ first)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model.safetensors", merged)
    return folder


def write_prompts(file: Path) -> Path:
    """Write prompts with the answers that the adapter was trained for."""
    rows = [json.loads(line) for line in (EXAMPLES / "prompts.jsonl").read_text().splitlines()]
    chats = [row | {"answer": f"Sure! {row['answer']}"} for row in rows if "messages" in row]
    file.write_text("\n".join(map(json.dumps, chats)))
    return file


def build(key: Path, bundle: Path, *words: str | Path) -> Path:
    """Build a bundle by the command."""
    command = [sys.executable, "-m", "edgepack.cli", "build", *map(str, words)]
    command += ["--key", str(key), "-o", str(bundle)]
    ended = warm_programs.run(command, capture_output=True, text=True, timeout=400)
    assert ended.returncode == 0, ended.stderr
    return bundle


def build_base(
    key: Path, bundle: Path, model: Path = LLAMA, *more: str | Path, floats: bool = True
) -> Path:
    """Build a base; with a float variant, unless `floats` is False."""
    words = ("--profile", "fp32") if floats else ()
    prompts = EXAMPLES / "prompts.jsonl"
    return build(key, bundle, model, *words, "--calibration", prompts, *more)


def build_adapter(
    key: Path, bundle: Path, base: Path, *more: str | Path, adapter: Path = ADAPTER
) -> Path:
    prompts = write_prompts(bundle.with_name(f"{bundle.name}.jsonl"))
    words = ("--adapter", adapter, "--base", base, "--calibration", prompts)
    return build(key, bundle, *words, *more)
