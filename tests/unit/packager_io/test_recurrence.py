"""States are found by name and shape, and samples get the float model's states."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import (
    InputDeclaration,
    RawInput,
    TokenInput,
    WantedInputs,
    series_steps,
)
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.chains import STEPS, describe_chains, describe_series, run_samples
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.samples.recurrence import find_states, follow_states
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.sequence import Feeds, Samples, State
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.arrays import Outputs
from edgepack.tasks.description import ModelDescription, TaskOutputs
from tests.graphs import graph_model

STATE = State(input="state", output="stateN")


def _spec(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def _find(
    inputs: list[TensorSpec],
    outputs: list[TensorSpec],
    declarations: dict[str, InputDeclaration] | None = None,
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    found = find_states(inputs, outputs, declarations or {})
    return [(state.input, state.output) for state in found.states], found.notes


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("state", "stateN"),
        ("state", "state_out"),
        ("h0", "hn"),
        ("h_in", "h_out"),
        ("in_cache0", "out_cache0"),
        ("r1i", "r1o"),
        ("cache_last_channel", "cache_last_channel_next"),
        ("past_key_values.3.key", "present.3.key"),
        ("prev_hidden", "hidden"),
        ("past", "present"),
    ],
)
def test_names_that_differ_in_before_and_after_are_a_state(before: str, after: str) -> None:
    inputs = [_spec("sound", 1, 512), _spec(before, 2, 1, 8)]
    outputs = [_spec("speech", 1, 1), _spec(after, 2, 1, 8)]
    assert _find(inputs, outputs)[0] == [(before, after)]


def test_input_and_output_alone_are_names_of_every_model() -> None:
    inputs = [_spec("input", 1, 8), _spec("length", 1)]
    assert _find(inputs, [_spec("output", 1, 8)]) == ([], ())


def test_layers_are_not_confused() -> None:
    inputs = [_spec("x", 1, 4), _spec("h_in.0", 1, 8), _spec("h_in.1", 1, 8)]
    outputs = [_spec("h_out.1", 1, 8), _spec("h_out.0", 1, 8)]
    assert _find(inputs, outputs)[0] == [("h_in.0", "h_out.0"), ("h_in.1", "h_out.1")]


def test_another_shape_or_type_is_no_state() -> None:
    inputs = [_spec("x", 1, 4), _spec("state", 2, 1, 8), _spec("step", 1, dtype="int64")]
    outputs = [_spec("state_out", 2, 1, 16), _spec("step_out", 1)]
    assert _find(inputs, outputs) == ([], ())


def test_a_filter_whose_only_input_comes_out_again_is_no_state() -> None:
    assert _find([_spec("image", 1, 3, 8, 8)], [_spec("image_out", 1, 3, 8, 8)]) == ([], ())


def test_two_outputs_that_could_feed_an_input_are_left_to_the_person() -> None:
    outputs = [_spec("state_new", 1, 8), _spec("state_out", 1, 8)]
    states, notes = _find([_spec("x", 1, 4), _spec("state", 1, 8)], outputs)
    assert states == []
    assert notes == (
        "Input 'state' may be a state ('state_new' or 'state_out' could feed it): "
        '[inputs.state] kind = "raw", from = "OUTPUT" in edgepack.toml would settle it.',
    )


def test_a_declaration_settles_it_either_way() -> None:
    inputs = [_spec("x", 1, 4), _spec("memory", 1, 8), _spec("state", 1, 8)]
    outputs = [_spec("y", 1, 8), _spec("stateN", 1, 8)]
    declared: dict[str, InputDeclaration] = {
        "memory": RawInput(fed_from="y"),
        "state": RawInput(fed_from=""),
    }
    states, notes = _find(inputs, outputs, declared)
    assert states == [("memory", "y")]
    assert notes == ("Input 'memory' is fed from output 'y' of the inference before (declared).",)


def test_tokens_are_never_a_state() -> None:
    inputs = [_spec("x", 1, 4), _spec("ids", 1, 8, dtype="int64")]
    outputs = [_spec("ids_next", 1, 8, dtype="int64")]
    assert _find(inputs, outputs)[0] == [("ids", "ids_next")]
    assert _find(inputs, outputs, {"ids": TokenInput(vocabulary=9)})[0] == []


def test_a_declared_output_must_exist_and_fit() -> None:
    inputs, outputs = [_spec("state", 1, 8)], [_spec("stateN", 1, 8), _spec("y", 1, 2)]
    with pytest.raises(BuildError, match="no output 'staten'; it has stateN, y") as missing:
        _find(inputs, outputs, {"state": RawInput(fed_from="staten")})
    assert missing.value.remedy == 'from = "stateN"'
    assert missing.value.found_in == "inputs.state.from"
    with pytest.raises(BuildError, match=r"y: float32\[1,2\] cannot be fed to input state"):
        _find(inputs, outputs, {"state": RawInput(fed_from="y")})


def _summing(path: Path, after: str = "stateN") -> Path:
    """Compute stateN = state / 2 + x, y = stateN * 3."""
    model = graph_model(
        f"(float[1] x, float[1] state) => (float[1] y, float[1] {after}) {{ kept = Mul(state, half)"
        f" {after} = Add(kept, x) y = Mul({after}, three) }}",
        {"half": np.array([0.5], np.float32), "three": np.array([3.0], np.float32)},
    )
    path.write_bytes(model.SerializeToString())
    return path


def _samples(count: int, *, states: list[float] | None = None) -> Samples:
    def read(index: int) -> Feeds:
        state = states[index] if states else 0.0
        return {
            "x": np.array([1.0 + index], dtype=np.float32),
            "state": np.array([state], dtype=np.float32),
        }

    return Samples(count=count, read=read, source="samples")


def _follow(
    samples: Samples,
    folder: Path,
    steps: int = 0,
    after: str = "stateN",
    fed_from: str | None = None,
) -> OpenedSamples:
    opened = OpenedSamples(samples=samples, digests=(), notes=("given",))
    source = load_source(_summing(folder / "summing.onnx", after))
    declared = {"state": RawInput(steps=steps, fed_from=fed_from)}
    states = folder / "states"
    return follow_states(opened, source, declared, folder=states, progress=lambda *told: None)


def test_samples_that_all_hold_the_first_state_get_the_float_models_own(tmp_path: Path) -> None:
    followed = _follow(_samples(4), tmp_path)
    assert followed.samples.states == (STATE,)
    seen = [float(feeds["state"][0]) for feeds in followed.samples]
    assert seen == [0.0, 1.0, 2.5, 4.25]
    assert followed.notes == (
        "given",
        "Input 'state' is fed from output 'stateN' of the inference before (by name and shape).",
        "All 4 samples hold the same 'state': each got what the float model had there, run "
        "through them in file order.",
    )
    assert float(followed.samples.pick([2]).read(0)["state"][0]) == 2.5


def test_states_that_were_saved_with_the_samples_are_kept(tmp_path: Path) -> None:
    followed = _follow(_samples(3, states=[7.0, 8.0, 9.0]), tmp_path)
    assert [float(feeds["state"][0]) for feeds in followed.samples] == [7.0, 8.0, 9.0]
    assert len(followed.notes) == 2


def test_a_state_with_a_name_of_its_own_is_found_by_the_order_of_the_samples(
    tmp_path: Path,
) -> None:
    states = [0.0]
    for index in range(19):
        states.append(states[-1] / 2 + 1.0 + index)
    followed = _follow(_samples(20, states=states), tmp_path, after="memory")
    assert followed.samples.states == (State(input="state", output="memory"),)
    assert "the samples show that" in followed.notes[1]
    assert not followed.samples.doubt
    shuffled = _follow(_samples(20, states=states[::-1]), tmp_path, after="memory")
    assert not shuffled.samples.states


def test_a_constant_input_of_an_outputs_shape_makes_verdicts_weak(tmp_path: Path) -> None:
    followed = _follow(_samples(4), tmp_path, after="memory")
    assert not followed.samples.states
    for fact in ("'state'", "from = 'y' or 'memory'", "from = ''"):
        assert fact in followed.samples.doubt
    for settled in ("memory", ""):
        assert not _follow(_samples(4), tmp_path, after="memory", fed_from=settled).samples.doubt


def test_a_chain_starts_with_the_samples_state_and_goes_on_with_its_own() -> None:
    samples = replace(_samples(3, states=[10.0, 20.0, 30.0]), states=(STATE,))

    def run(feeds: Feeds) -> Feeds:
        return {"y": feeds["state"], "stateN": np.asarray(np.add(feeds["state"], feeds["x"]))}

    said = [float(outputs["y"][0]) for outputs in run_samples(run, samples)]
    assert len(said) == 3 * STEPS
    assert said[:4] == [10.0, 11.0, 13.0, 16.0]
    assert said[STEPS : STEPS + 3] == [20.0, 22.0, 25.0]
    assert all(set(outputs) == {"y"} for outputs in run_samples(run, samples))
    read = TaskOutputs(task="values", outputs=("stateN",), source="declared")
    known = replace(samples, description=ModelDescription(parts=(read,)))
    assert all(set(outputs) == {"y", "stateN"} for outputs in run_samples(run, known))
    assert describe_chains(samples) == (
        "3 chains of 8 inferences, each feeding its state to the next"
    )


def test_errors_that_grow_ask_for_the_steps_of_the_state_by_its_name() -> None:
    scores = np.random.default_rng(5).normal(0, 6, (100, STEPS, 4))
    moved = scores + np.arange(0.05, 0.42, 0.05)[:, None] * np.array([1, -1, 0, 0])
    expected, got = ([{"y": row} for row in v.reshape(-1, 1, 4)] for v in (scores, moved))
    part = TaskOutputs(task="classification", outputs=("y",), source="declared")
    states = (State(input="cache.0", output="cache.1"),)
    samples = Samples(count=800, read=lambda _: {}, source="drawn", states=states)
    known = describe_series(ModelDescription(parts=(part,)), samples)
    (weak,) = Reference(expected, {}, known).judge(got).weak
    assert "[inputs.\"cache.0\"] kind = 'raw' and steps = ... in edgepack.toml" in weak


def test_each_series_begins_anew_and_is_a_chain(tmp_path: Path) -> None:
    followed = _follow(_samples(6), tmp_path, steps=3)
    samples = followed.samples
    assert [float(feeds["state"][0]) for feeds in samples] == [0.0, 1.0, 2.5, 0.0, 4.0, 7.0]
    assert "each series of 3" in followed.notes[-1]

    def run(feeds: Feeds) -> Feeds:
        return {"y": feeds["state"], "stateN": np.asarray(np.add(feeds["state"], feeds["x"]))}

    said = [float(outputs["y"][0]) for outputs in run_samples(run, samples)]
    assert said == [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]
    assert describe_chains(samples).startswith("2 chains of 3 inferences")
    assert samples.first(5).steps == 3
    assert samples.first(5).count == 3
    assert samples.pick([1, 2, 3]).steps == 0


def test_samples_that_are_no_whole_series_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="5 samples are no whole series of 3 inferences"):
        _follow(_samples(5), tmp_path, steps=3)
    inputs = {"a": RawInput(steps=3), "b": RawInput(steps=4), "c": RawInput()}
    with pytest.raises(BuildError, match="'a': 3, 'b': 4"):
        series_steps(inputs)
    model = graph_model("(float[1] x) => (float[1] y) { y = Neg(x) }")
    (tmp_path / "plain.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(BuildError, match="steps = 3 is declared, and the model has no state"):
        follow_states(
            OpenedSamples(samples=_samples(6), digests=(), notes=()),
            load_source(tmp_path / "plain.onnx"),
            {"x": RawInput(steps=3)},
            folder=tmp_path / "states",
            progress=lambda *told: None,
        )


def test_equal_samples_stay_in_series(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((6, 1), np.float32))
    for steps, count in ((0, 1), (3, 6)):
        wanted = WantedInputs(specs=(_spec("x", 1),), declarations={"x": RawInput(steps=steps)})
        opened = open_samples(str(tmp_path / "x.npz"), wanted, lambda *told: None)
        assert opened.samples.count == len(opened.digests) == count


def test_a_sample_of_another_batch_begins_with_its_own_state() -> None:
    samples = Samples(
        count=6,
        read=lambda index: {
            "x": np.ones((index % 3 + 1, 4), np.float32),
            "state": np.zeros((index % 3 + 1, 2), np.float32),
        },
        source="samples",
        states=(STATE,),
    )

    def run(feeds: Feeds) -> Outputs:
        assert len(feeds["x"]) == len(feeds["state"])
        return {"y": feeds["x"], "stateN": feeds["state"] + 1}

    assert len(run_samples(run, samples)) == 6 * STEPS


def test_without_states_every_sample_runs_once() -> None:
    samples = _samples(3)
    assert run_samples(lambda feeds: feeds, samples) == list(samples)
    assert describe_chains(samples) == ""
