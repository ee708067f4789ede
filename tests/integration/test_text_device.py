"""A model that writes texts, installed on a device: commands and an application."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgepack.agent import open_model
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.bundles import make_bundle
from tests.simulators.text_bundles import make_text_bundle


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, release_keys: Keys) -> Path:
    """Return the settings of a device with a model that writes texts, and a model that does not."""
    folder = tmp_path_factory.mktemp("device")
    settings = folder / "agent.toml"
    settings.write_text(
        f'device = "cam-1"\nstate_dir = "state"\n[trust]\nkeys = ["{release_keys[1]}"]\n'
        "[probe]\nruns = 1\n[providers]\nthreads = 1\n"
    )
    other = make_bundle(folder / "other", release_keys[0])
    for bundle in (make_text_bundle(folder / "one", release_keys[0]), other.folder):
        run("install", str(bundle), "--soak", "0", "--config", str(settings))
    return settings


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edgepack.agent.cli", *words]
    ended = warm_programs.run(command, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    return ended


def test_command_writes_the_text_of_the_application(settings: Path) -> None:
    with open_model("chat", settings.parent / "state", threads=1) as model:
        messages = [{"role": "user", "content": "Hi"}]
        chat = model.generate(messages, temperature=1.0, seed=3, max_tokens=30).whole()
        raw = model.generate("Hi", temperature=1.0, seed=3, max_tokens=30).whole()
    words = ("generate", "chat", "Hi", "--temperature", "1", "--seed", "3", "--max-tokens", "30")
    at = ("--config", str(settings))
    found = json.loads(run(*words, "--json", *at).stdout)
    assert found["text"] == chat.text
    assert (found["finish_reason"], found["completion_tokens"]) == (
        chat.finish_reason,
        len(chat.tokens),
    )
    assert json.loads(run(*words, "--raw", "--json", *at).stdout)["text"] == raw.text
    shown = run(*words, *at)
    assert not set(shown.stdout) & set(map(chr, [*range(10), *range(11, 32), 127]))
    assert f"{len(chat.tokens)} tokens of chat 1.1.0, the first after" in shown.stderr


def test_proof_of_the_texts_is_shown(settings: Path) -> None:
    for command in (("explain", "chat"), ("status",)):
        shown = run(*command, "--config", str(settings)).stdout
        assert "tokens over the cache are" in shown
        assert "to the first token after 48, then" in shown


def test_command_rejects_other_models_and_long_prompts(settings: Path) -> None:
    at = ("--config", str(settings))
    assert "model 'tiny' writes no texts" in run("generate", "tiny", "Hi", *at, code=1).stderr
    long = run("generate", "chat", "a" * 200, "--raw", *at, code=1).stderr
    assert "the prompt has 200 tokens, the model's context is 96" in long


def test_bench_shows_first_token_and_tokens_per_second(settings: Path) -> None:
    words = ("bench", "chat", "--seconds", "0.1", "--config", str(settings))
    rows = {row["source"]: row for row in json.loads(run(*words, "--json").stdout)["rows"]}
    assert rows["first token of 48"]["p50_ms"] > 0
    assert rows["token after 48"]["tokens_per_s"] > 0
    assert "tokens/s" in run(*words).stdout


def test_device_chooses_the_variant_by_the_time_of_a_text(
    tmp_path: Path, release_keys: Keys
) -> None:
    variants = {"slow-token": "token", "slow-prompt": "prompt"}
    bundle = make_text_bundle(tmp_path / "bundle", release_keys[0], variants=variants)
    settings = tmp_path / "agent.toml"
    settings.write_text(
        f'device = "cam-1"\nstate_dir = "state"\n[trust]\nkeys = ["{release_keys[1]}"]\n'
        "[probe]\nruns = 1\n[providers]\nthreads = 1\n"
    )
    run("install", str(bundle), "--soak", "0", "--config", str(settings))
    found = json.loads(run("explain", "chat", "--json", "--config", str(settings)).stdout)
    choice = found["pointer"]["choice"]
    assert choice["chosen"] == "slow-prompt", "golden texts take longest with it"
    assert choice["because"].count("tokens a second") == 2


def test_limit_of_memory_takes_the_variant_that_fits_with_its_cache(
    tmp_path: Path, release_keys: Keys
) -> None:
    bundle = make_text_bundle(
        tmp_path / "bundle", release_keys[0], variants={"large": "prompt", "small": ""}
    )
    manifest = decode_manifest((bundle / MANIFEST_FILE).read_bytes())
    large, small = (manifest.memory_bytes(one) for one in ("large", "small"))
    settings = tmp_path / "agent.toml"
    for limit, code in ((large - 1, 0), (small - 1, 1)):
        settings.write_text(
            f'device = "cam-1"\nstate_dir = "state-{code}"\n[probe]\nruns = 1\n'
            f'[trust]\nkeys = ["{release_keys[1]}"]\n[limits]\nmemory_bytes = {limit}\n'
        )
        words = ("install", str(bundle), "--soak", "0", "--config", str(settings))
        done = run(*words, code=code)
        if code:
            assert f"{limit}" in done.stderr
            return
        shown = run("explain", "chat", "--json", "--config", str(settings)).stdout
        choice = json.loads(shown)["pointer"]["choice"]
        assert choice["chosen"] == "small"
        assert f"{large}" in choice["rejected"]["large"]
        assert f"{limit}" in choice["rejected"]["large"]
