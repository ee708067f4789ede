"""From a model and a profile to a variant: chosen, searched, refused, marked."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.timing import Turns
from edgepack.packager.search import race
from edgepack.packager.search.speedup import Speedup, measure_speedup
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from tests.unit.packager_passes.declaring import declare
from tests.unit.packager_passes.models import (
    attention,
    cnn,
    parsed_model,
    samples_for,
    spread_model,
    weight,
)
from tests.unit.packager_passes.preparing import prepare

Build = Callable[..., PreparedVariant]


def _split(samples: Samples) -> SampleSplit:
    third = samples.count // 3
    return SampleSplit(
        calibration=samples.pick(range(third)),
        search=samples.pick(range(third, 2 * third)),
        held_out=samples.pick(range(2 * third, samples.count)),
    )


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def made(
        model: onnx.ModelProto, profile: Profile | str, *, allow_degraded: bool = False
    ) -> PreparedVariant:
        number = len(list(tmp_path.iterdir()))
        path = tmp_path / f"{number}.onnx"
        onnx.save(model, path)
        return prepare(
            path,
            load_profile(profile) if isinstance(profile, str) else profile,
            _split(samples_for(model, 45)),
            tmp_path / f"work-{number}",
            allow_degraded=allow_degraded,
        )

    return made


def _never_float(**quantize: object) -> Profile:
    """The profile cpu, which here must quantize, whatever the speed, and races no other scope."""
    return resolve_profile(
        "cpu",
        {
            "gates": {"float_instead": []},
            "pass": [{"name": "quantize", "raced_ops": "", **quantize}],
        },
    )


def _float_where_inaccurate(**quantize: object) -> Profile:
    """The profile cpu, which publishes the float model only where no quantized one holds."""
    return resolve_profile(
        "cpu",
        {
            "gates": {"float_instead": ["inaccurate"]},
            "pass": [{"name": "quantize", **quantize}],
        },
    )


@pytest.mark.parametrize(
    ("profile", "precision"),
    [
        ("fp32", "fp32"),
        ("openvino-cpu", "a8w8"),
        ("vitisai-xint8", "xint8"),
    ],
)
def test_a_profile_yields_a_variant_within_its_budget(
    profile: str, precision: str, build: Build
) -> None:
    variant = build(cnn(), profile)
    assert variant.name == variant.profile == profile
    assert variant.precision == precision
    assert variant.accuracy.value >= variant.accuracy.budget
    assert variant.accuracy.sample_count == 15
    assert (variant.folder / variant.model_file).is_file()
    assert set(variant.tolerances) == {"scores"}
    assert variant.provider_options == load_profile(profile).provider.options
    assert variant.requires.runtime == load_profile(profile).device.runtime
    assert not variant.degraded


def test_a_provider_that_is_not_here_is_not_claimed_to_have_run(build: Build) -> None:
    variant = build(cnn(), "vitisai-xint8")
    assert not variant.placement.verified
    assert variant.accuracy.provider == "CPUExecutionProvider"
    assert variant.timing is not None
    assert variant.timing.latency_ms is None
    assert any("Not run on VitisAIExecutionProvider here" in note for note in variant.notes)


def test_the_same_inputs_give_the_same_model_bytes(build: Build) -> None:
    for profile in (_never_float(), load_profile("vitisai-xint8")):
        first, second = (build(cnn(), profile) for _ in range(2))
        assert (first.folder / first.model_file).read_bytes() == (
            second.folder / second.model_file
        ).read_bytes()


def test_metadata_that_applications_read_stay_with_the_model(build: Build) -> None:
    model = cnn()
    model.metadata_props.add(key="labels", value="a,b")
    variant = build(model, "vitisai-xint8")
    kept = onnx.load(variant.folder / variant.model_file).metadata_props
    assert [(entry.key, entry.value) for entry in kept] == [("labels", "a,b")]


def test_nodes_that_lose_too_much_return_to_float_and_the_search_is_recorded(
    build: Build,
) -> None:
    variant = build(spread_model(1e4), _never_float(max_float_share=1.0))
    assert variant.accuracy.value >= variant.accuracy.budget
    words = [attempt.what for attempt in variant.attempts]
    assert words[0] == "minmax, 3 nodes quantized"
    assert any("of 3 nodes float" in what for what in words)
    assert any("nodes float" in note for note in variant.notes)
    timed = [attempt for attempt in variant.attempts if attempt.latency_ms]
    assert len(timed) > 1, "small candidates are all timed, not only the best"
    assert [attempt for attempt in timed if attempt.is_best]


def test_nodes_that_lose_too_much_get_16_bits_where_the_profile_says_so(build: Build) -> None:
    whole_graph = resolve_profile(
        "vitisai-a8w8",
        {"pass": [{"name": "quantize", "high_precision_activations": "int16"}]},
    )
    variant = build(spread_model(50), whole_graph)
    assert variant.accuracy.value >= variant.accuracy.budget
    assert variant.precision == "a8w8", "what most of it is"
    assert any(re.search(r"Quantized with .*of 3 nodes 16-bit", note) for note in variant.notes)
    assert any("nodes have int16 activations, the others int8" in note for note in variant.notes)
    (best,) = [attempt for attempt in variant.attempts if attempt.is_best]
    assert best.high_precision_nodes
    assert best.float_nodes == 0


def test_a_model_that_cannot_be_kept_is_refused_with_the_curve_and_the_culprits(
    build: Build,
) -> None:
    with pytest.raises(BuildError) as caught:
        build(spread_model(1e4), _never_float(max_float_share=0.0))
    message = str(caught.value)
    assert "profile 'cpu' keeps top1_agreement 0." in message
    assert "budget is 0.9800" in message
    assert re.search(r"^ +0\.\d{4} +[\d,]+ bytes  minmax, 3 nodes quantized$", message, re.M)
    assert "percentile-99.99" in message
    assert "costliest nodes: pick_layer" in message
    assert "--allow-degraded" in message


def test_a_refused_variant_can_be_built_marked(build: Build) -> None:
    variant = build(spread_model(1e4), _never_float(max_float_share=0.0), allow_degraded=True)
    assert variant.degraded
    assert variant.accuracy.value < variant.accuracy.budget
    assert any(note.startswith("Published although: profile 'cpu'") for note in variant.notes)


def test_the_float_model_is_published_where_no_quantized_one_is_right(build: Build) -> None:
    profile = resolve_profile(
        "cpu",
        {
            "gates": {"float_instead": ["inaccurate"]},
            "pass": [{"name": "quantize", "max_float_share": 0.0}],
        },
    )
    variant = build(spread_model(1e4), profile)
    assert variant.precision == "fp32"
    assert variant.accuracy.value == 1.0
    assert variant.float_because.startswith("none of 4 candidates keeps the budget of 0.9667 (the")
    assert variant.accuracy.budget == 0.98, "nothing of it had to be forgiven"
    assert f"The float model is published: {variant.float_because}." in variant.notes


def test_a_model_with_nothing_to_quantize_is_refused_or_stays_float(build: Build) -> None:
    model = parsed_model("(float[1,4] x) => (float[1,4] y) { [relu] y = Relu(x) }")
    assert build(model, "cpu").precision == build(model, "openvino-cpu").precision == "fp32"
    never_float = resolve_profile("cpu", {"gates": {"float_instead": []}})
    with pytest.raises(BuildError, match="has no node that it could"):
        build(model, never_float)


def test_an_attention_mask_does_not_ruin_a_wholly_quantized_graph(build: Build) -> None:
    variant = build(attention(), "vitisai-xint8")
    assert variant.accuracy.value >= 0.95


def test_a_size_gate_refuses_with_both_sizes(build: Build) -> None:
    profile = resolve_profile("fp32", {"gates": {"size_ratio_max": 0.5}})
    with pytest.raises(BuildError, match=r"the variant takes [\d,]+ bytes, .* allows 50%"):
        build(cnn(), profile)


def _fainter(samples: Samples, factor: float) -> Samples:
    """Held-out samples that a step of the calibrated range takes more from."""
    return replace(
        samples,
        read=lambda index: {
            name: (value.astype(np.float32) * factor).astype(np.float32)
            for name, value in samples.read(index).items()
        },
    )


def _prepare_for_fainter(
    profile: Profile, factor: float, folder: Path, *, allow_degraded: bool
) -> PreparedVariant:
    """Three products that give clear scores.

    They are calibrated on samples that are 1/factor times as large as the held-out.
    """
    model = parsed_model(
        "(float[1,8] x) => (float[1,8] y) { [first] h1 = MatMul(x, w1) "
        "[second] h2 = MatMul(h1, w2) [third] y = MatMul(h2, w3) }",
        [
            *(weight(f"w{number}", 8, 8, seed=number) for number in (1, 2)),
            weight("w3", 8, 8, seed=3, scale=90.0),
        ],
    )
    onnx.save(model, folder / "model.onnx")
    samples = replace(samples_for(model, 45), description=declare(y="classification"))
    split = _split(samples)
    return prepare(
        folder / "model.onnx",
        profile,
        replace(split, held_out=_fainter(split.held_out, factor)),
        folder / "work",
        allow_degraded=allow_degraded,
    )


def test_where_one_of_few_clear_decisions_differs_a_nearer_candidate_is_looked_for(
    tmp_path: Path,
) -> None:
    variant = _prepare_for_fainter(
        _never_float(ranges=["minmax"], max_float_share=1.0), 1.0, tmp_path, allow_degraded=False
    )
    told = [note for note in variant.notes if note.startswith("The held-out samples refuse")]
    assert "top1_agreement 0.9333, the budget is 0.9800" in told[0]
    assert not variant.degraded
    best = next(attempt for attempt in variant.attempts if attempt.is_best)
    assert variant.attempts[0].float_nodes == 0
    assert best.float_nodes


def _race_at(monkeypatch: pytest.MonkeyPatch, *speedups: float) -> None:
    """Let candidates be so many times as fast as the float model, the last for all that follow."""
    left = list(speedups)

    def raced(_: object, asked: float | None, __: object = None) -> Speedup:
        speedup = left.pop(0) if len(left) > 1 else left[0]
        turns = Turns(times_s=((1e-3 / speedup,) * 7, (1e-3,) * 7))
        return measure_speedup(lambda: turns, asked)

    monkeypatch.setattr(race, "measure_speedup", raced)


@pytest.mark.parametrize(
    ("surer", "what"),
    [
        (1.5, "minmax, 1 of 3 nodes float (27% of the multiply-accumulates)"),
        (0.5, "minmax, 3 nodes quantized"),
    ],
)
def test_a_surer_candidate_replaces_a_passing_one_unless_it_gives_way_to_the_float_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, surer: float, what: str
) -> None:
    _race_at(monkeypatch, 2.0, 2.0, surer)  # the second rejects hopeless candidates alone
    model = spread_model(10.0)
    onnx.save(model, tmp_path / "model.onnx")
    split = _split(replace(samples_for(model, 45), description=declare(y="values")))
    quantize = {"name": "quantize", "ranges": ["minmax"], "max_float_share": 1.0, "raced_ops": ""}
    budget = {"values": {"keep": 0.995}}
    profile = resolve_profile("cpu", {"gates": {"accuracy": budget}, "pass": [quantize]})
    variant = prepare(tmp_path / "model.onnx", profile, split, tmp_path / "work")
    (unsure,) = (note for note in variant.notes if "are not sure of" in note)
    assert "minmax, 3 nodes quantized (explained_by_column 0.9957, the budget is 0.9950)" in unsure
    assert any("may be surer saves nothing" in note for note in variant.notes) == (surer < 1.0)
    (best,) = (attempt for attempt in variant.attempts if attempt.is_best)
    assert (variant.precision, best.what) == ("a8w8", what)


def test_a_scope_that_won_the_race_and_is_refused_gives_way_to_the_scope_that_it_beat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parsed_model(
        "(float[1,16] x, float[1,16] u) => (float[1,16] y) { "
        "h = MatMul(x, w) r = Relu(h) y = Add(r, u) }",
        [weight("w", 16, 16, seed=1)],
    )
    onnx.save(model, tmp_path / "model.onnx")
    samples = replace(samples_for(model, 45), description=declare(y="values"))
    split = _split(samples)
    beyond = replace(
        split.held_out,
        read=lambda index: {
            name: np.asarray(values, np.float32) * (6.0 if name == "u" else 1.0)
            for name, values in split.held_out.read(index).items()
        },
    )
    _race_at(monkeypatch, 2.0)
    profile = resolve_profile(
        "cpu",
        {
            "gates": {"accuracy": {"values": {"keep": 0.95}}},
            "pass": [{"name": "quantize", "ranges": ["minmax"], "raced_ops": "all"}],
        },
    )
    work = tmp_path / "work"
    variant = prepare(tmp_path / "model.onnx", profile, replace(split, held_out=beyond), work)
    refused = next(note for note in variant.notes if note.startswith("The held-out samples refuse"))
    assert "every operator: minmax" in refused
    assert "the candidate that it beat in the race" in refused
    best = next(attempt for attempt in variant.attempts if attempt.is_best)
    assert best.what == "minmax, 1 node quantized"
    assert variant.precision == "a8w8"


def test_where_held_out_samples_refuse_to_the_end_the_float_model_may_be_published(
    tmp_path: Path,
) -> None:
    profile = _float_where_inaccurate(ranges=["minmax"], max_float_share=0.4)
    variant = _prepare_for_fainter(profile, 1e-3, tmp_path, allow_degraded=False)
    assert (variant.precision, variant.degraded) == ("fp32", False)
    assert variant.accuracy.value == pytest.approx(1.0)
    assert (
        "The float model is published: the held-out samples refuse every quantized one."
        in variant.notes
    )
    assert len(variant.attempts) > 1, "what was tried stays known"


@pytest.mark.parametrize(
    ("factor", "most_float", "rounds"), [(0.5, 1.0, 0), (0.2, 1.0, 1), (1e-3, 0.4, 2)]
)
def test_where_held_out_samples_refuse_the_search_goes_on_at_most_twice(
    factor: float, most_float: float, rounds: int, tmp_path: Path
) -> None:
    profile = _never_float(ranges=["minmax"], max_float_share=most_float)
    variant = _prepare_for_fainter(profile, factor, tmp_path, allow_degraded=True)
    told = [note for note in variant.notes if note.startswith("The held-out samples refuse")]
    assert len(told) == rounds
    assert variant.degraded == (rounds == 2)
    assert (len(variant.attempts) > 1) == (rounds > 0)
    whats = [attempt.what for attempt in variant.attempts]
    assert whats.count("minmax, 3 nodes quantized") == 1, "what was tried before is told once"
    assert sum(attempt.is_best for attempt in variant.attempts) == 1


def test_the_process_of_the_trial_is_kept_for_the_rehearsal_of_the_same_variant(
    tmp_path: Path,
) -> None:
    model = cnn()
    onnx.save(model, tmp_path / "model.onnx")
    with ProviderProcess() as process:
        variant = prepare(
            tmp_path / "model.onnx",
            load_profile("cpu"),
            _split(samples_for(model, 45)),
            tmp_path / "work",
            resources=Resources(process=process),
        )
        assert variant.placement.verified
        assert process.subject == variant.name
