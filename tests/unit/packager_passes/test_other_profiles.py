"""Another profile is advised where a look at it gives a reason to, and else is told of."""

import re
from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.pipeline.profile_advice import Outlook, advise
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.search.candidates import Candidate, CandidateMeasurement, SearchResult
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import SampleSplit
from tests.unit.packager_passes.candidate_specs import spec
from tests.unit.packager_passes.models import parsed_model, samples_for, weight
from tests.unit.packager_passes.preparing import prepare


def _verdict(value: float) -> Verdict:
    spare = (value - 0.98) / 0.02
    return Verdict(
        metric="explained_variance",
        value=value,
        float_value=1.0,
        budget=0.98,
        passed=spare >= 0.0,
        spare=spare,
        noise=0.0,
    )


def _found(value: float) -> SearchResult:
    """What a search tried: with every node lowered it keeps so much, with one float all of it."""
    whole = Candidate(
        label="",
        spec=spec("minmse"),
        high_precision_words="",
        path=Path("none"),
        measured=CandidateMeasurement(verdict=_verdict(value), size_bytes=1, lowered=2),
    )
    measured = replace(whole.measured, verdict=_verdict(1.0))
    partly = replace(whole, spec=spec("minmse", ("a",)), measured=measured)
    return SearchResult(best=partly, attempts=(), sensitive_nodes=(), candidates=(whole, partly))


def test_a_profile_is_advised_with_the_reason_that_a_look_at_it_gave() -> None:
    holds = Outlook(name="holds", verdict=_verdict(0.99))
    nearer = Outlook(name="nearer", verdict=_verdict(0.96))
    floats = Outlook(name="floats")
    advice = advise((holds, nearer, floats), _found(0.9))
    assert advice.learnt == ()
    assert advice.instead == (
        "--profile holds, which keeps explained_variance 0.9900 with every node quantized, or "
        "--profile nearer, which may need fewer float nodes: it keeps explained_variance 0.9600 "
        "with every node quantized, this one 0.9000, or --profile floats, which lowers no node: "
        "its provider rounds by itself, which is not measured here"
    )


def test_a_profile_that_loses_nearly_as_much_is_not_advised_but_told_of() -> None:
    outlooks = (
        Outlook(name="alike", verdict=_verdict(0.93)),
        Outlook(name="broken", problem="cannot be built either (no such operator)"),
    )
    advice = advise(outlooks, _found(0.9))
    assert advice.instead == ""
    assert advice.learnt == (
        "--profile alike gives no reason to expect more: it keeps explained_variance 0.9300 with "
        "every node quantized, this one 0.9000.",
        "--profile broken cannot be built either (no such operator).",
    )


def test_values_of_two_metrics_say_which_is_which() -> None:
    by_rows = replace(_verdict(0.93), metric="sequence_agreement")
    (told,) = advise((Outlook(name="alike", verdict=by_rows),), _found(0.9)).learnt
    assert told.endswith(
        "it keeps sequence_agreement 0.9300 with every node quantized, this one "
        "explained_variance 0.9000."
    )


def test_where_nothing_was_lowered_there_is_nothing_to_compare_with() -> None:
    outlooks = (Outlook(name="some", verdict=_verdict(0.93)), Outlook(name="none", problem="fails"))
    assert advise(outlooks, None).learnt == (
        "--profile some gives no reason to expect more: it keeps explained_variance 0.9300 with "
        "every node quantized.",
        "--profile none fails.",
    )


def _refuse(folder: Path, resources: Resources | None = None) -> str:
    """The refusal of a model of two products, for xint8."""
    model = parsed_model(
        "(float[1,8] x) => (float[1,8] y) { [first] h = MatMul(x, w0) [second] y = MatMul(h, w1) }",
        [weight(f"w{i}", 8, 8, seed=i) for i in range(2)],
    )
    onnx.save(model, folder / "model.onnx")
    samples = samples_for(model, 45)
    profile = resolve_profile(
        "vitisai-xint8",
        {
            "gates": {
                "alternatives": ["vitisai-a8w8", "vitisai-a16w8", "vitisai-bf16"],
                "accuracy": {"any": {"keep": 0.985}},
            },
            "pass": [{"name": "quantize", "max_float_share": 0.0}],
        },
    )
    split = SampleSplit(
        calibration=samples.pick(range(15)),
        search=samples.pick(range(15, 30)),
        held_out=samples.pick(range(30, 45)),
    )
    with pytest.raises(BuildError) as caught:
        prepare(folder / "model.onnx", profile, split, folder / "work", resources=resources)
    return str(caught.value)


def test_a_refusal_tells_what_the_next_profiles_were_seen_to_keep(tmp_path: Path) -> None:
    message = _refuse(tmp_path)
    remedy = message[message.index("try: ") :]
    assert "--profile vitisai-a8w8, which keeps explained_by_column 0.9" in remedy
    assert "--profile vitisai-a16w8, which keeps explained_by_column 0.9" in remedy
    assert "--profile vitisai-bf16, which lowers no node" in remedy
    kept = re.findall(r"which keeps explained_by_column (0\.\d+)", remedy)
    assert len(set(kept)) == 2, "each was measured by itself"


def test_no_other_profile_is_looked_at_when_the_time_is_used_up(tmp_path: Path) -> None:
    ticks = iter(range(10_000))
    limit = TimeLimit(1.0, lambda: float(next(ticks)))
    message = _refuse(tmp_path, Resources(limit=limit))
    assert "--profile vitisai-a16w8 was not looked at: no time was left." in message
    assert "which keeps" not in message
