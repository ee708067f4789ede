"""Check what a report says of a verdict."""

import numpy as np
from msgspec.structs import replace

from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.tensors.sequence import Samples, State


def test_the_report_says_how_sure_the_verdict_is_and_that_it_comes_from_chains() -> None:
    values = np.random.default_rng(0).normal(0, 1, (16, 1, 1)).astype(np.float32)
    outputs = [{"speech": value, "stateN": value} for value in values]
    reference = Reference(outputs, {})
    verdict = reference.judge(outputs)
    states = (State(input="state", output="stateN"),)
    samples = Samples(count=16, read=lambda index: {}, source="samples", states=states)
    first, second = describe_verdict(verdict, 16, samples, reference.measure(outputs))
    assert first == (
        "explained_variance of output 'speech' is 1.0000 on 16 held-out samples: with 95 % "
        "confidence at least 1.0000 on samples like these."
    )
    assert second == (
        "Judged on 16 chains of 8 inferences, each feeding its state to the next; single "
        "inferences keep explained_variance 1.0000 of 'speech'. In longer use errors may grow: "
        "steps in [inputs] says after how many inferences the state begins anew."
    )
    series = replace(samples, steps=8)
    _, judged = describe_verdict(verdict, 16, series, reference.measure(outputs))
    assert judged.startswith("Judged on 2 chains of 8 inferences")
    assert "longer use" not in judged
