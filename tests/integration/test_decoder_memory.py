"""Memory that builds of a language model take of their own, next to the pages of its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from tests.huggingface.drawn_decoders import write_folder

_SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 256,
}
"""Of a model of 158 MB: more than a build keeps in memory. A search tries each of its few nodes."""

_LARGE_VOCABULARY = _SIZES | {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 24576,
}
"""Of a model of 168 MB. The scores of all tokens of the long prompts take 1.2 times as much."""

_SHORT, _LONG = "t2 t3 t4", " ".join(f"t{number % 70}" for number in range(80))

_CASES = {
    "fp32": (_SIZES, _SHORT, 24, 1.5),
    "int4": (_SIZES, _SHORT, 12, 1.9),
    "fp32 of a large vocabulary": (_LARGE_VOCABULARY, _LONG, 24, 2.2),
}
"""Sizes, end of the prompts, their number, and the most own memory beyond the interpreter's, in
sizes of the model: this was 2.1 and 4.1 with all forms in memory, and 4.5 with the scores of whole
prompts.
"""

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


@pytest.mark.parametrize("case", _CASES)
def test_a_build_holds_about_one_form_of_the_model(case: str, tmp_path: Path) -> None:
    sizes, prompt, count, most_forms = _CASES[case]
    folder = write_folder(tmp_path / "decoder", "llama3", dtype="F32", **sizes)
    lines = (
        f'{{"prompt": "t{number} {prompt}", "answer": "t5 t6 t{number}"}}'
        for number in range(count)
    )
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "int4.toml").write_text(_PROFILE)
    write_key_pair(generate_key(), tmp_path / "release")
    profile = str(tmp_path / "int4.toml") if case == "int4" else "fp32"
    given = (folder, profile, tmp_path / "release.key", tmp_path / "large-1.0.0")
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, *map(str, given)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # As the command does.
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    size = (folder / "model.safetensors").stat().st_size
    assert int(ended.stdout) < most_forms * size
