"""Texts of an installed release: the engine against the model as a whole, swaps, errors."""

import threading
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import DeviceError, Tensor, open_model
from edgepack.agent.generation import decoding
from edgepack.agent.runtime.opening import open_model_file
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.serving.text_generation import OwnGeneration
from edgepack.errors import BundleError
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import (
    CONTEXT,
    END,
    HEAD,
    KV_HEADS,
    LAYERS,
    chat_tokens,
    encode,
    install_texts,
    make_assets,
    make_text_bundle,
)
from tests.simulators.waiting import wait_until

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("releases")
    return [make_text_bundle(folder / str(number), release=number) for number in (1, 2)]


@pytest.fixture
def state_dir(tmp_path: Path, releases: list[Path]) -> Path:
    write_pointer(tmp_path, install_texts(tmp_path, releases[0]))
    return tmp_path


def likeliest(bundle: Path, tokens: list[int], count: int) -> list[int]:
    """Return the likeliest tokens by runs of the whole text, without a cache."""
    session = open_model_file(bundle / "model/cpu/model.onnx", threads=1)
    empty = np.zeros((1, KV_HEADS, 0, HEAD), np.float32)
    cache: dict[str, Tensor] = {
        f"past_key_values.{n}.{part}": empty for n in range(LAYERS) for part in ("key", "value")
    }
    found: list[int] = []
    while len(found) < count and END not in found:
        ids = np.array([tokens + found], np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), **cache}
        found.append(int(session.run(feeds)["logits"][0, -1].argmax()))
    return found


@pytest.mark.parametrize("most", [3, 512])
def test_text_is_that_of_the_whole_model(
    state_dir: Path, releases: list[Path], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "MOST_STEPS", most)
    messages = [{"role": "user", "content": "Größe?"}]
    with open_model("chat", state_dir, threads=1) as model:
        for prompt, tokens in ((PROMPT, encode(PROMPT)), (messages, chat_tokens(messages))):
            generation = model.generate(prompt, max_tokens=40)
            text = generation.whole()
            assert list(text.tokens) == likeliest(releases[0], tokens, 40)
            assert generation.prompt_tokens == len(tokens)
            assert generation.completion_tokens == len(text.tokens)
            assert text.finish_reason == ("stop" if END in text.tokens else "length")
            shown = [token for token in text.tokens if token < END]
            assert (
                text.text.encode(errors="replace") == bytes(shown).decode(errors="replace").encode()
            )


def test_graph_without_shared_cache_writes_the_same_text(
    tmp_path: Path, releases: list[Path]
) -> None:
    assets = make_assets()
    assets["genai_config.json"] = assets["genai_config.json"].replace(
        '"past_present_share_buffer": true', '"past_present_share_buffer": false'
    )
    bundle = make_text_bundle(tmp_path / "bundle", release=1, assets=assets)
    write_pointer(tmp_path / "state", install_texts(tmp_path / "state", bundle))
    with open_model("chat", tmp_path / "state", threads=1) as model:
        text = model.generate(PROMPT, max_tokens=30).whole()
    assert list(text.tokens) == likeliest(releases[0], encode(PROMPT), 30)


def test_seed_repeats_a_text_and_the_context_ends_a_text(state_dir: Path) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        texts = [
            model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=30).whole()
            for seed in (7, 7, 8)
        ]
        assert texts[0] == texts[1] != texts[2]
        long = model.generate("a" * (CONTEXT - 5), temperature=5.0, seed=1, max_tokens=1000).whole()
        assert len(long.tokens) <= 5
        assert long.finish_reason == ("stop" if END in long.tokens else "length")
        first = texts[0].text[3:5]
        stopped = model.generate(PROMPT, temperature=1.0, seed=7, stop=[first], max_tokens=30)
        assert stopped.whole().text == texts[0].text[: texts[0].text.find(first)]
        assert stopped.whole().text == ""


def test_what_does_not_fit_is_an_error_with_numbers(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        for arguments, problem in (
            (("a" * 96,), "the prompt has 96 tokens, the model's context is 96"),
            (([],), "messages are a list"),
            (([{"role": "user"}],), "message 0 needs a role and a text"),
        ):
            with pytest.raises(ValueError, match=problem):
                model.generate(*arguments)
        for named, problem in (
            ({"max_tokens": 0}, "max_tokens is at least 1, not 0"),
            ({"temperature": -1.0}, "temperature is 0 to 100"),
            ({"stop": [""]}, "a stop string has 1 to 1000 characters"),
            ({"stop": ["a"] * 17}, "at most 16 stop strings, not 17"),
            ({"adapter": "law"}, "model 'chat' has no adapter 'law' on this device"),
        ):
            with pytest.raises(ValueError, match=problem):
                model.generate(PROMPT, **named)
        monkeypatch.setattr(decoding, "available_bytes", lambda: 1000)
        with pytest.raises(DeviceError, match=r"needs \d+ bytes of memory, 1000 are free"):
            model.generate(PROMPT)
    with pytest.raises(ValueError, match="the model is closed"):
        model.generate(PROMPT)


def test_memory_of_texts_in_progress_counts_before_they_take_it(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        first = model.generate(PROMPT)
        needed = next(iter(decoding._texts))._bytes
        monkeypatch.setattr(decoding, "available_bytes", lambda: int(1.5 * needed))
        with pytest.raises(DeviceError, match="run fewer texts at once"):
            model.generate(PROMPT)
        first.close()
        model.generate(PROMPT).close()


def test_missing_packages_are_an_error_that_names_the_extra(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.generation.texts.find_spec", lambda name: None)
    with open_model("chat", state_dir, threads=1) as model:
        with pytest.raises(DeviceError, match="jinja2 and tokenizers") as caught:
            model.generate(PROMPT)
        assert caught.value.remedy == "pip install 'edgepack[generative]'"


def test_wiring_that_does_not_fit_the_graph_is_an_error_at_opening(tmp_path: Path) -> None:
    for number, (old, new, problem) in enumerate(
        (
            ('"head_size": 16', '"head_size": 32', "the cache has 1 heads of 32 values"),
            ('"num_hidden_layers": 2', '"num_hidden_layers": 3', "has no input 'past_key_values.2"),
            ('"num_hidden_layers": 2', '"num_hidden_layers": 1', "has no place in the decoder"),
            ('"logits": "logits"', '"logits": "scores"', "no output 'scores'"),
            ('"vocab_size": 259', '"vocab_size": 300', "and the vocabulary 300 tokens"),
            ("past_key_values.%d.value", "past_key_values.%d.key", "the same name"),
        )
    ):
        assets = make_assets()
        assert old in assets["genai_config.json"]
        assets["genai_config.json"] = assets["genai_config.json"].replace(old, new)
        state = tmp_path / str(number)
        write_pointer(
            state, install_texts(state, make_text_bundle(state / "bundle", assets=assets))
        )
        with pytest.raises(BundleError, match=problem):
            open_model("chat", state, threads=1)


def test_twenty_swaps_under_eight_streams_leave_each_text_to_its_release(
    tmp_path: Path, releases: list[Path]
) -> None:
    pointers = [install_texts(tmp_path, bundle) for bundle in releases]
    expected: dict[tuple[str, int], tuple[int, ...]] = {}
    for pointer in pointers:
        write_pointer(tmp_path, pointer)
        with open_model("chat", tmp_path, threads=1) as model:
            for seed in range(8):
                text = model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=40).whole()
                expected[pointer.bundle.version, seed] = text.tokens
    found: list[tuple[str, int, tuple[int, ...]]] = []
    swaps: set[str] = set()
    is_over = threading.Event()
    faults: list[BaseException] = []
    with open_model("chat", tmp_path, threads=1, poll_s=0.01) as model:

        def write(seed: int) -> None:
            try:
                while not is_over.is_set():
                    generation = model.generate(PROMPT, temperature=1.0, seed=seed, max_tokens=40)
                    version = generation.bundle.version
                    found.append((version, seed, generation.whole().tokens))
            except BaseException as error:
                faults.append(error)
                raise

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for number in range(20):
            pointer = pointers[number % 2]
            write_pointer(tmp_path, pointer)
            before = len(found)
            wait_until(lambda: model.bundle.version == pointer.bundle.version)  # noqa: B023
            wait_until(lambda: len(found) > before + 2 or bool(faults))  # noqa: B023
            swaps.add(pointer.bundle.version)
        is_over.set()
        for thread in threads:
            thread.join()
        assert not faults
        assert not model._follower._holders
    assert swaps == {"1.1.0", "1.2.0"}
    assert {version for version, _, _ in found} == swaps
    assert all(expected[version, seed] == tokens for version, seed, tokens in found)


def test_text_counts_once_with_the_time_of_a_token_and_is_never_captured(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[object] = []
    monkeypatch.setattr(SampleKeeper, "offer", lambda *arguments: offered.append(arguments))
    with open_model("chat", state_dir, threads=1) as model:
        generation = model.generate(PROMPT, temperature=1.0, seed=7, max_tokens=20)
        generation.whole()
        with model.generate(PROMPT, temperature=1.0, seed=7) as cut:
            next(cut)
            next(cut)
        model.generate(PROMPT).close()  # Nothing was written.
        record = model._opened().record
        assert record.latency.snapshot().latency.count == 2
        assert record.latency.sum_ms == pytest.approx(generation.token_ms + cut.token_ms)
        assert model._opened().running_since == 0.0
        broken = model.generate(PROMPT)
        assert isinstance(broken, OwnGeneration)

        def fail() -> None:
            raise DeviceError("the provider failed")

        monkeypatch.setattr(model._opened().texts, "write", lambda *_: iter(fail, None))
        broken._pieces = iter(fail, None)
        with pytest.raises(DeviceError, match="the provider failed"):
            broken.whole()
        assert record.latency.snapshot().failures == 1
        assert not model._follower._holders
    assert not offered


def test_long_prompt_shows_its_progress(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_STEPS", 10)
    with open_model("chat", state_dir, threads=1) as model:
        release = model._opened()
        begun: list[float] = []
        noted = release.note_running

        def note() -> None:
            noted()
            begun.append(release.running_since)

        monkeypatch.setattr(release, "note_running", note)
        generation = model.generate("a" * 45, max_tokens=3)
        assert isinstance(generation, OwnGeneration)
        seen = {generation.progress_ns}
        for _ in generation:
            seen.add(generation.progress_ns)
        assert len(begun) >= 5 + 1
        assert begun == sorted(begun)
        assert len(seen) > 1
        assert release.running_since == 0.0


def test_text_that_nobody_reads_leaves_its_release_at_once(state_dir: Path) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        generation = model.generate(PROMPT)
        next(generation)
        assert model._follower._holders
        del generation
        assert not model._follower._holders
        assert not len(decoding._texts)
        assert model._opened().record.latency.snapshot().latency.count == 1


def test_a_cancelled_text_ends_within_its_prompt_and_is_no_failure(state_dir: Path) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        generation = model.generate(PROMPT, max_tokens=3)
        assert isinstance(generation, OwnGeneration)
        generation.cancel()
        with pytest.raises(decoding.TextCancelledError):
            next(generation)
        assert not model._serving.record.has_new_failures
        assert generation.completion_tokens == 0
        assert len(list(model.generate(PROMPT, max_tokens=3))) <= 3
