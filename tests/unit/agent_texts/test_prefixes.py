"""Kept beginnings of prompts: equal logits, bounded memory, nothing of another session."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.generation import decoding
from edgepack.agent.generation.prefixes import MOST_PREFIXES, Prefix, Prefixes
from edgepack.agent.generation.sampling import Logits, Sampler
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import install_texts, make_assets, make_text_bundle

LONG = 2000
SYSTEM = "You answer in one word. " * 20  # 480 tokens: 3 inferences of 128 tokens and a part


@pytest.fixture(params=["true", "false"], ids=["shared", "growing"])
def state_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a device with a model, with a cache in place or a cache that grows."""
    assets = make_assets(context_length=LONG)
    assets["genai_config.json"] = assets["genai_config.json"].replace(
        '"past_present_share_buffer": true', f'"past_present_share_buffer": {request.param}'
    )
    bundle = make_text_bundle(tmp_path / "bundle", context=LONG, assets=assets)
    write_pointer(tmp_path, install_texts(tmp_path, bundle))
    return tmp_path


def test_logits_after_a_kept_beginning_are_equal_bit_for_bit(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Logits] = []
    pick = Sampler.pick

    def note(self: Sampler, logits: Logits) -> int:
        seen.append(logits.copy())
        return pick(self, logits)

    monkeypatch.setattr(Sampler, "pick", note)
    prompts = [SYSTEM + one for one in ("Name a river.", "Name a river.", "And a lake?" * 12)]

    def write(prompt: str) -> tuple[list[Logits], int]:
        seen.clear()
        text = model.generate(prompt, temperature=1.0, seed=1, max_tokens=20)
        text.whole()
        return list(seen), text.cached_tokens  # type: ignore[attr-defined]

    expected = []
    for prompt in prompts:
        with open_model("chat", state_dir, threads=1) as model:
            logits, cached = write(prompt)
            assert cached == 0
            expected.append(logits)
    with open_model("chat", state_dir, threads=1) as model:
        for prompt, logits, cached in zip(prompts, expected, (0, 384, 384), strict=True):
            found, was_cached = write(prompt)
            assert was_cached == cached
            assert len(found) == len(logits)
            assert all(map(np.array_equal, found, logits))
        assert write(prompts[2])[1] == (len(prompts[2]) - 1) // 128 * 128, "the longer is kept"


def test_kept_beginnings_stay_within_the_memory_of_a_context_and_make_room_for_texts(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model("chat", state_dir, threads=1) as model:
        texts = model._opened().texts
        assert texts is not None
        for number in range(2 * MOST_PREFIXES):
            model.generate(f"{number} {SYSTEM}", max_tokens=2).whole()
        per_token = 4 * 2 * 2 * 16  # float32, keys and values, 2 layers, 1 head of 16 values
        assert 384 * per_token <= texts._prefixes.size_bytes <= LONG * per_token
        full = model.generate(SYSTEM, max_tokens=LONG - len(SYSTEM))
        next(full)
        assert texts._prefixes.size_bytes == 0, "this text takes the whole context"
        full.close()
        assert texts._prefixes.size_bytes == 384 * per_token, "and leaves its own beginning"
        free = [0]
        monkeypatch.setattr(decoding, "available_bytes", lambda: free.pop() if free else 10**9)
        model.generate(SYSTEM, max_tokens=2).whole()
        assert not free, "without memory, beginnings are dropped and the text is written"


def test_beginning_of_another_session_or_in_other_inferences_is_not_taken() -> None:
    kept, owner = Prefixes(), object()
    cache = {"key": np.zeros((1, 1, 8, 4), np.float32)}
    kept.keep(Prefix(owner, 4, np.arange(8), cache), 10**6)
    assert kept.find(owner, 4, [*range(8), 1])[0] == 8
    assert kept.find(owner, 4, list(range(8)))[0] == 4, "the last inference gives the logits"
    assert kept.find(owner, 4, [0, 1, 2, 3, 9, 9])[0] == 4
    assert kept.find(owner, 4, [0, 1, 9, 9, 9]) == (0, None)
    assert kept.find(object(), 4, [*range(8), 1]) == (0, None)
    assert kept.find(owner, 2, [*range(8), 1]) == (0, None)
