"""A variant holds on every board that its profile matches, or the worst board refuses it."""

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from edgepack.agent.runtime.child import Ending
from edgepack.agent.runtime.facts import read_device_facts
from edgepack.decoding import decode_json
from edgepack.errors import BuildError
from edgepack.packager.pipeline.board_validation import match_boards
from edgepack.packager.pipeline.refusal import VariantRefusedError
from edgepack.packager.profiles.reading import load_profile, resolve_profile
from edgepack.packager.runtime.board import Board
from edgepack.packager.runtime.provider_process import ProviderProcess, Waiting, in_silence
from edgepack.packager.runtime.race_child import RaceAnswer
from edgepack.packager.runtime.trial import OUTPUTS, Asked
from edgepack.packager.tensors.exchange import Tensors, read_tensors, write_tensors
from edgepack.packager.tensors.sequence import SampleSplit
from tests.unit.packager_passes.models import samples_for, spread_model
from tests.unit.packager_passes.preparing import prepare

FACTS = read_device_facts()
ARM = replace(FACTS, arch="aarch64", cpu_features=("asimd",), cpu_model="Cortex-A76")
FP32 = load_profile("fp32")


class WrongProcess(ProviderProcess):
    """A board's process whose chip computes noise of a size, seen as a share of the outputs."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def ask(self, request: bytes, *, timeout_s: float, waiting: Waiting = in_silence) -> Ending:
        """Ask the real process, and change its outputs."""
        ending = super().ask(request, timeout_s=timeout_s, waiting=waiting)
        asked = decode_json(request, Asked)
        if asked.trial is not None:
            path = Path(asked.trial.exchange) / OUTPUTS
            noise = np.random.default_rng(0)
            outputs: list[Tensors] = [
                {
                    name: value.astype(np.float32) + self._share * noise.normal(0, 1, value.shape)
                    for name, value in sample.items()
                }
                for sample in read_tensors(path, asked.trial.sample_count)
            ]
            write_tensors(path, outputs)
        return ending


class TimedProcess(ProviderProcess):
    """A board's process whose chip runs each candidate in a multiple of the float model's time."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self._times = times

    def ask(self, request: bytes, *, timeout_s: float, waiting: Waiting = in_silence) -> Ending:
        """Ask the real process, and change its times."""
        ending = super().ask(request, timeout_s=timeout_s, waiting=waiting)
        if decode_json(request, Asked).race is None or ending.answer is None:
            return ending
        answer = decode_json(ending.answer, RaceAnswer)
        _, float_s = answer.times_s
        timed = replace(answer, times_s=(tuple(self._times * it for it in float_s), float_s))
        return Ending(answer=msgspec.json.encode(timed), because="")


def _split(model: onnx.ModelProto) -> SampleSplit:
    samples = samples_for(model, 40)
    return SampleSplit(calibration=samples, search=samples, held_out=samples)


def test_each_board_has_a_result_and_the_accuracy_is_that_of_the_boards(tmp_path: Path) -> None:
    onnx.save(model := spread_model(3.0), tmp_path / "model.onnx")
    with ProviderProcess() as first, ProviderProcess() as second:
        boards = (
            Board(name="board-a", facts=FACTS, process=first),
            Board(name="board-b", facts=ARM, process=second),
        )
        made = prepare(tmp_path / "model.onnx", FP32, _split(model), tmp_path / "w", boards=boards)
    assert [(row.board, row.arch, row.machine, row.passed) for row in made.boards] == [
        ("board-a", FACTS.arch, FACTS.soc or FACTS.cpu_model, True),
        ("board-b", "aarch64", FACTS.soc or "Cortex-A76", True),
    ]
    assert all(row.placement.taken == row.placement.total > 0 for row in made.boards)
    assert made.placement.verified
    assert any(note.startswith("Proven on a board: ") for note in made.notes)
    assert "board-a" not in " ".join(made.notes), "the bundle names no host"


def test_variant_is_refused_by_the_one_board_that_computes_it_wrongly(
    tmp_path: Path,
) -> None:
    onnx.save(model := spread_model(3.0), tmp_path / "model.onnx")
    with ProviderProcess() as right, WrongProcess(40.0) as wrong:
        boards = (
            Board(name="right", facts=FACTS, process=right),
            Board(name="wrong", facts=FACTS, process=wrong),
        )
        with pytest.raises(VariantRefusedError, match=r"keeps .* and the budget is") as caught:
            prepare(tmp_path / "model.onnx", FP32, _split(model), tmp_path / "w", boards=boards)
    assert [(row.board, row.passed) for row in caught.value.variant.boards] == [
        ("right", True),
        ("wrong", False),
    ]


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_times_of_the_board_choose_between_quantized_and_float_model(
    tmp_path: Path, times: float
) -> None:
    onnx.save(model := spread_model(3.0), tmp_path / "model.onnx")
    loose = {"accuracy": {"any": {"keep": 0.01}}, "prefer": "speed"}
    profile = resolve_profile("cpu", {"gates": loose})
    with TimedProcess(times) as process:
        board = (Board(name="board-a", facts=ARM, process=process),)
        made = prepare(
            tmp_path / "model.onnx", profile, _split(model), tmp_path / "w", boards=board
        )
    (row,) = made.boards
    assert row.float_latency_ms is not None
    assert made.timing is not None
    if times < 1.0:
        assert made.float_because == ""
        assert row.latency_ms == pytest.approx(times * row.float_latency_ms)
        assert made.timing.latency_ms == row.latency_ms
    else:
        assert "on the board's CPUExecutionProvider the quantized one is" in made.float_because
        assert row.latency_ms == row.float_latency_ms


def test_boards_prove_the_profiles_that_their_facts_fit() -> None:
    board = Board(name="pi", facts=ARM, process=ProviderProcess())
    host = Board(name="nuc", facts=replace(FACTS, arch="x86_64"), process=ProviderProcess())
    profiles = (load_profile("cpu-arm64"), FP32)
    found = match_boards((board, host), profiles)
    assert {name: it.boards for name, it in found.items()} == {
        "cpu-arm64": (board,),
        "fp32": (board, host),
    }
    x86 = match_boards((host,), (load_profile("cpu-arm64"), FP32))["cpu-arm64"]
    assert x86.boards == ()
    assert x86.unproven.startswith("x86_64, ")
    assert "it is for aarch64" in x86.unproven
    assert "nuc" not in x86.unproven, "the bundle names no host"
    with pytest.raises(BuildError, match="board nuc fits none of the profiles") as caught:
        match_boards((board, host), profiles[:1])
    assert "cpu-arm64: it is for aarch64" in (caught.value.found_in or "")
