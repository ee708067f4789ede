"""Texts are sketched for drift, and the inputs of their decoder are kept only if named."""

from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.generation.texts import TextRequest
from edgepack.agent.server.statistics import Stopwatch
from edgepack.agent.server.text_inference import TextInference
from edgepack.agent.serving import capture
from edgepack.agent.serving.following import Follower
from edgepack.agent.state.captured import CaptureSettings, kept_samples, switch_capture
from edgepack.agent.telemetry import sketches
from edgepack.bundle.drift import draw_features
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.tokens.sketch import (
    GROUPS,
    PROMPT,
    SURPRISAL_TOKENS,
    TEXT,
    groups_of,
    sketch_prompt,
    sketch_surprisals,
    surprisal_of,
)
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import encode, install_texts, make_text_bundle

FEATURES = (
    *draw_features(PROMPT, [sketch_prompt(range(size)) for size in (4, 9)], " of the prompt"),
    *draw_features(TEXT, [sketch_surprisals([one]) for one in (1.0, 3.0)], " of a token"),
)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state folder with a model that writes texts; every inference is looked at."""
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)
    monkeypatch.setattr(capture, "OFFER_S", 0.0)
    write_pointer(tmp_path, install_texts(tmp_path, make_text_bundle(tmp_path / "bundle")))
    return tmp_path


@pytest.mark.parametrize("is_served", [False, True])
def test_text_adds_length_groups_and_surprisal_of_its_own_tokens(
    state: Path, is_served: bool
) -> None:
    prompt, reference = "Once upon a time", None
    follower = Follower("chat", state, threads=1, poll_s=None)
    with open_model("chat", state, threads=1) as model:
        record = follower.serving.record if is_served else model._serving.record
        record.sketches.expect(FEATURES, ModelDescription())
        for request in (
            TextRequest(prompt=prompt, max_tokens=20),
            TextRequest(prompt=prompt, max_tokens=20, temperature=1.5, seed=1),
        ):
            if is_served:
                TextInference(request, Stopwatch(), lambda _: None).run(follower)
            else:
                model._begin_text(request).whole()
        texts = model._serving.texts
        assert texts is not None
        reference = texts.begin(40)
        tokens, expected = encode(prompt), []
        for _ in range(SURPRISAL_TOKENS):
            logits = reference.feed(tokens)
            tokens = [int(logits.argmax())]
            expected.append(surprisal_of(logits, tokens[0]))
    found = {one.feature.words: one for one in record.sketches.snapshot()}
    assert found["length of the prompt"].count == 2
    assert found["length of the prompt"].value == len(encode(prompt))
    group = int(groups_of(encode("O"))[0])
    share = np.mean(groups_of(encode(prompt)) == group)
    assert found[f"share of token group {group} of the prompt"].value == pytest.approx(share)
    assert found["surprisal of a token"].count == 1, "another temperature does not compare"
    assert found["surprisal of a token"].value == pytest.approx(np.mean(expected), rel=1e-5)
    follower.close()


def test_token_groups_part_a_vocabulary_evenly() -> None:
    counts = np.bincount(groups_of(range(50_000)), minlength=GROUPS)
    assert counts.size == GROUPS
    assert counts.min() > 0.99 * counts.max()


def test_inputs_of_a_decoder_are_kept_only_if_the_settings_name_the_model(state: Path) -> None:
    for names, kept in (((), 0), (("other",), 0), (("chat",), 1)):
        settings = CaptureSettings(samples=5, max_bytes=10**6, texts=names)
        assert switch_capture(state, settings) == ""
        with open_model("chat", state, threads=1) as model:
            model.generate("Once upon", max_tokens=3).whole()
            texts = model._serving.texts
            assert texts is not None
            feeds: dict[str, Tensor] = texts.feeds_of(encode("Once upon a time"))
            model.run(feeds)
        assert len(kept_samples(state, "chat")) == kept, names
