"""The gate of a build, a device's probe and its shadow evaluate with one task."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgepack.bundle.golden import compare_outputs, is_same_answer
from edgepack.bundle.metadata import GoldenAgreement
from edgepack.packager.gates.accuracy import Reference
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs
from edgepack.tasks.text.head import TextHead
from tests.unit.tasks.drawn_objects import YOLO, as_yolo, draw_scenes, with_scores

Pairs = tuple[TaskOutputs, Sequence[Outputs], Sequence[Outputs]]
"""A part of a description, the float model's outputs and those of a variant that lost some."""


def _classifier() -> Pairs:
    rng = np.random.default_rng(0)
    expected: list[Outputs] = [
        {"logits": rng.normal(0, 4, (1, 5)).astype(np.float32)} for _ in range(12)
    ]
    got: list[Outputs] = [{"logits": one["logits"].copy()} for one in expected]
    for outputs in got[:4]:
        outputs["logits"] = np.roll(outputs["logits"], 1, axis=-1)
    part = TaskOutputs(task="classification", outputs=("logits",), source="declared")
    return part, expected, got


def _detector() -> Pairs:
    scenes = draw_scenes(12, [0.9, 0.8, 0.6])
    got = [as_yolo(with_scores(one, -0.6 if n < 4 else 0.0)) for n, one in enumerate(scenes)]
    return YOLO.part, [as_yolo(one) for one in scenes], got


def _reader() -> Pairs:
    rng = np.random.default_rng(1)

    def line(characters: Sequence[int]) -> Outputs:
        steps = np.full((1, 2 * len(characters), 6), -6.0, np.float32)
        for place, character in enumerate(characters):
            steps[0, 2 * place, character] = 6.0
            steps[0, 2 * place + 1, 0] = 6.0
        return {"steps": steps}

    texts = [rng.integers(1, 6, 8).tolist() for _ in range(12)]
    changed = [text[::-1] if n < 4 else text for n, text in enumerate(texts)]
    part = TextHead(output="steps", blank=0, source="declared").part
    return part, [line(text) for text in texts], [line(text) for text in changed]


def _writer() -> Pairs:
    rng = np.random.default_rng(2)
    texts = [rng.integers(1, 60, 8) for _ in range(12)]
    changed = [text[::-1] if n < 4 else text for n, text in enumerate(texts)]
    part = TaskOutputs(task="transcript", outputs=("tokens",), source="declared")
    expected: list[Outputs] = [{"tokens": text[None]} for text in texts]
    return part, expected, [{"tokens": text[None]} for text in changed]


@pytest.mark.parametrize("make", [_classifier, _detector, _reader, _writer])
def test_gate_probe_and_shadow_measure_the_same_pairs_alike(make: Callable[[], Pairs]) -> None:
    part, expected, got = make()
    description = ModelDescription(parts=(part,))
    (at_gate,) = Reference(expected, {}, description).judge(got).agreements
    assert 0.0 < at_gate.value < 0.99

    def probe(keep: float) -> bool:
        return compare_outputs(expected, got, {}, (GoldenAgreement(part=part, keep=keep),)).right

    assert probe(at_gate.value)
    assert not probe(at_gate.value + 1e-6)
    shadowed = GoldenAgreement(part=part, keep=0.9)
    same = [is_same_answer(*pair, {}, (shadowed,)) for pair in zip(expected, got, strict=True)]
    assert same == [loss <= 0.5 for loss in at_gate.losses]
    assert same[4:] == [True] * 8
    assert not all(same[:4])
