"""Memory that builds of a language model take of their own, next to the pages of its files."""

import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from tests.huggingface.drawn_decoders import write_folder

_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 14,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}
"""Of a model of 174 MB: more than a build keeps in memory."""

_MOST_FORMS = {"fp32": 1.5, "int4": 1.9}
"""Own memory beyond the interpreter's, in sizes of the model; it was 2.1 and 4.1 with all forms in
memory."""

_PROFILE = """
[profile]
name = "int4"
extends = "cpu-int4"

[[pass]]
name = "quantize_weights"
methods = ["rtn"]
high_precision_bits = 8
max_float_share = 0.0

[gates.accuracy.any]
keep = 0.0
"""

_CHILD = """
import sys, threading
from pathlib import Path
from edgepack.packager import build

def own_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024

before, peak, is_over = own_bytes(), 0, threading.Event()

def watch():
    global peak
    while not is_over.wait(0.002):
        peak = max(peak, own_bytes())

thread = threading.Thread(target=watch)
thread.start()
folder, profile, key, output = sys.argv[1:]
build(folder, profiles=[profile], calibration=f"{folder}/prompts.jsonl", key=key, output=output,
      allow_degraded=True)
is_over.set()
thread.join()
print(peak - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Hugging Face folder with prompts, a profile and a key."""
    folder = write_folder(
        tmp_path_factory.mktemp("large") / "decoder", "llama3", dtype="F32", **_SIZES
    )
    lines = (
        f'{{"prompt": "t{number} t2 t3 t4", "answer": "t5 t6 t{number}"}}' for number in range(24)
    )
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (folder.parent / "int4.toml").write_text(_PROFILE)
    write_key_pair(generate_key(), folder.parent / "release")
    return folder


@pytest.mark.parametrize("profile", _MOST_FORMS)
def test_a_build_holds_about_one_form_of_the_model(
    profile: str, folder: Path, tmp_path: Path
) -> None:
    given = str(folder.parent / "int4.toml") if profile == "int4" else profile
    key, output = folder.parent / "release.key", tmp_path / "large-1.0.0"
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, str(folder), given, str(key), str(output)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    size = (folder / "model.safetensors").stat().st_size
    assert int(ended.stdout) < _MOST_FORMS[profile] * size
