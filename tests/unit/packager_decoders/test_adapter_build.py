"""A release of an adapter: its gates, its bytes, and what is rejected with numbers."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import Manifest, decode_manifest
from edgepack.cli import cli
from edgepack.tasks.details import ADAPTER_RATIO, DIVERGENCE, PERPLEXITY_RATIO
from tests.simulators.adapters import ADAPTER, EXAMPLES, LLAMA, copy_adapter, read_adapter
from tests.simulators.adapters import write_prompts as write_adapter_prompts
from tests.simulators.text_bundles import make_text_bundle

_BYTES = """
[profile]
name = "eight"
extends = "cpu-int4"
[gates]
float_instead = []
[[pass]]
name = "quantize_weights"
methods = ["rtn"]
bits = 8
"""
Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with keys, prompts, a base of two variants, and a release of the adapter."""
    folder = tmp_path_factory.mktemp("adapters")
    write_key_pair(generate_key(), folder / "release")
    (folder / "eight.toml").write_text(_BYTES)
    write_adapter_prompts(folder / "support.jsonl")
    built = _run(
        folder,
        *(LLAMA, "--adapters", "--profile", folder / "eight.toml", "--profile", "fp32"),
        *("--calibration", EXAMPLES / "prompts.jsonl", "-o", folder / "chat-1.0.0"),
    )
    assert not built.exception, built.output
    built = _adapt(folder, ADAPTER, "support-1.0.0")
    assert not built.exception, built.output
    return folder


def _run(folder: Path, *words: str | Path) -> Result:
    return CliRunner().invoke(
        cli, ["build", "--key", str(folder / "release.key"), *map(str, words)]
    )


def _adapt(folder: Path, adapter: Path, name: str, *words: str | Path) -> Result:
    given = {"--base": folder / "chat-1.0.0", "--calibration": folder / "support.jsonl"}
    given |= dict(zip(words[::2], words[1::2], strict=True))  # type: ignore[arg-type]
    more = [word for pair in given.items() for word in pair if pair[1]]
    return _run(folder, "--adapter", adapter, "-o", folder / name, *more)


def _read(bundle: Path) -> Manifest:
    return decode_manifest((bundle / "manifest.json").read_bytes())


def test_each_variant_is_measured_against_the_float_base_with_the_adapter(folder: Path) -> None:
    base, manifest = _read(folder / "chat-1.0.0"), _read(folder / "support-1.0.0")
    adapter = manifest.facts.adapter
    assert adapter is not None
    assert (adapter.base, adapter.base_version, adapter.rank) == ("chat", "1.0.0", 4)
    assert adapter.modules == ("mlp.down_proj", "self_attn.q_proj", "self_attn.v_proj")
    assert [one.name for one in manifest.variants] == [one.name for one in base.variants]
    for variant in manifest.variants:
        details = variant.facts.accuracy.details
        assert details[f"{ADAPTER_RATIO}_high"] < 0.1, "the prompts are those of the adapter"
        assert 0.99 < details[PERPLEXITY_RATIO] < 1.01
        assert details[DIVERGENCE] < 0.005
        assert not variant.facts.accuracy.weak
    assert manifest.variants[0].facts.accuracy.details[DIVERGENCE] > 0
    whole = sum(entry.size_bytes for entry in manifest.files)
    assert whole < sum(entry.size_bytes for entry in base.files) / 4
    page = (folder / "support-1.0.0.report.html").read_text()
    assert "The perplexity of the answers is" in page
    provenance = json.loads((folder / "support-1.0.0" / "provenance.json").read_text())
    assert adapter.base_digest in json.dumps(provenance)


def test_equal_adapters_give_equal_bytes_and_the_source_of_the_base_equal_numbers(
    folder: Path,
) -> None:
    again = _adapt(folder, ADAPTER, "again-1.0.0", "--name", "support")
    assert not again.exception, again.output
    name = "model/fp32/adapter.onnx_adapter"
    first, second = (folder / one / name for one in ("support-1.0.0", "again-1.0.0"))
    assert first.read_bytes() == second.read_bytes()
    assert (first.parents[2] / "manifest.json").read_bytes() == (
        second.parents[2] / "manifest.json"
    ).read_bytes()
    given = _run(
        folder,
        *(LLAMA, "--adapter", ADAPTER, "--base", folder / "chat-1.0.0", "--name", "support"),
        *("--calibration", folder / "support.jsonl", "-o", folder / "given-1.0.0"),
    )
    assert not given.exception, given.output
    names = ("support-1.0.0", "given-1.0.0")
    values = [_read(folder / one).variants[0].facts.accuracy.value for one in names]
    assert values[0] == pytest.approx(values[1], abs=1e-4)


def _longer(tensors: Tensors) -> Tensors:
    name = next(one for one in tensors if one.endswith("q_proj.lora_A.weight"))
    return tensors | {name: np.zeros((4, 96), np.float32)}


def _renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): one for name, one in tensors.items()}


def _worse(tensors: Tensors) -> Tensors:
    return {name: one * (-3 if "lora_B" in name else 1) for name, one in tensors.items()}


def _endless(tensors: Tensors) -> Tensors:
    return {name: np.full_like(one, np.nan) for name, one in tensors.items()}


@pytest.mark.parametrize(
    ("change", "config", "problem"),
    [
        (_longer, {}, r"\[4, 96\] and \[128, 4\], and the weight in chat 1.0.0 is \[128, 128\]"),
        (dict, {"r": 8}, r"has the shape \[4, \d+\], and the configuration means rank 8"),
        (_renamed("q_proj", "c_attn"), {}, "changes 'self_attn.c_attn', and chat 1.0.0 has places"),
        (_renamed("layers.0", "layers.7"), {}, "has a layer 7, and chat 1.0.0 has 3 layers"),
        (_endless, {}, "values that are not finite"),
        (dict, {"peft_type": "IA3"}, "IA3"),
        (dict, {"use_dora": True}, "use_dora"),
        (dict, {"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
        (dict, {"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4.*changes the base's weights"),
        (dict, {"modules_to_save": ["lm_head"]}, "lm_head"),
        (_worse, {}, "the adapter makes the answers less likely"),
    ],
)
def test_adapter_that_does_not_fit_its_base_is_rejected_with_numbers(
    folder: Path,
    tmp_path: Path,
    change: Callable[[Tensors], Tensors],
    config: dict[str, object],
    problem: str,
) -> None:
    adapter = copy_adapter(tmp_path / "adapter", change(read_adapter()), **config)
    done = _adapt(folder, adapter, "bad-1.0.0")
    assert done.exit_code == 1
    with pytest.raises(type(done.exception or ValueError()), match=problem):
        raise done.exception or ValueError(done.output)
    assert not (folder / "bad-1.0.0").exists()


def test_base_and_options_that_do_not_belong_to_an_adapter_are_rejected(
    folder: Path, tmp_path: Path
) -> None:
    plain = make_text_bundle(tmp_path / "plain")
    other = tmp_path / "other"
    shutil.copytree(LLAMA, other)
    settings = json.loads((other / "config.json").read_text()) | {"rms_norm_eps": 1e-5}
    (other / "config.json").write_text(json.dumps(settings))
    words = ("--adapter", ADAPTER, "--calibration", folder / "support.jsonl")
    base = ("--base", folder / "chat-1.0.0")
    for given, problem in (
        (words, "no bundle of a base was named"),
        ((*words, "--base", plain, "-o", "a-1.0.0"), "has no places for adapters"),
        ((*words, *base, "-o", "chat-2.0.0"), "have the same name, chat"),
        ((*words, *base, "--profile", "cpu", "-o", "a-1.0.0"), "takes no --profiles"),
        ((other, *words, *base, "-o", "a-1.0.0"), "is not the source of chat 1.0.0"),
        ((LLAMA, *base, "-o", "a-1.0.0"), "a base was named, and no adapter"),
        (
            (LLAMA, "--decryption-key", "a.key", "-o", "a-1.0.0"),
            "a key to decrypt a base was named",
        ),
        (("--adapter", ADAPTER, *base, "-o", "a-1.0.0"), "none were given"),
    ):
        done = _run(folder, *given)
        assert problem in str(done.exception), (given, done.output, done.exception)
