"""A rehearsal takes the trial's session for the same bytes and options, and for nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgepack.agent.runtime.opening import ON_CPU, open_session, settings_of
from edgepack.agent.runtime.probe import ProbeRequest, read_ending
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.chunks import entry
from edgepack.bundle.golden import Golden, write_golden
from edgepack.bundle.manifest import GOLDEN_FILE, Variant
from edgepack.packager.runtime.kept_session import (
    KeptSession,
    Opened,
    RememberingSession,
    digests_of,
)
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.trial import Asked, try_model
from edgepack.packager.tensors.sequence import Samples
from edgepack.wire.reports import ProbeResult
from tests.simulators.manifests import make_variant
from tests.unit.agent_runtime.examples import make_inputs, save_variant


def with_files(folder: Path, variant: Variant) -> Variant:
    """The variant, its manifest entries those of the files that lie in the bundle's folder."""
    files = tuple(
        entry(folder, f"{variant.folder}/{name}") for name in digests_of(folder / variant.folder)
    )
    return msgspec.structs.replace(
        variant, facts=msgspec.structs.replace(variant.facts, files=files)
    )


@pytest.fixture
def variant(tmp_path: Path) -> Variant:
    """A variant that lies in the bundle's folder `tmp_path`."""
    made = make_variant()
    save_variant(tmp_path, made)
    return with_files(tmp_path, made)


def keep(folder: Path, variant: Variant) -> tuple[KeptSession, Opened]:
    """A session of the variant as it lies there, kept."""
    kept = KeptSession()
    opened = Opened(
        path=folder / variant.folder / variant.model_file,
        digests=digests_of(folder / variant.folder),
        settings=settings_of(variant),
        session=RememberingSession(open_session(folder, variant)),
    )
    kept.keep(opened)
    return kept, opened


def test_the_same_bytes_with_the_same_options_are_not_opened_again(
    tmp_path: Path, variant: Variant
) -> None:
    kept, opened = keep(tmp_path, variant)
    assert kept.open_variant(tmp_path, variant, threads=0) is opened.session


def test_inputs_that_ran_are_answered_with_what_they_gave_and_new_ones_run(
    tmp_path: Path, variant: Variant
) -> None:
    seen, new = make_inputs(2)
    session = RememberingSession(open_session(tmp_path, variant))
    [given] = session.run_first([{**seen, "unknown": np.zeros(1)}], least=1, more_s=0.0)
    again, taken_ms = session.run_timed({name: value.copy() for name, value in seen.items()})
    assert again is given, "it ran a second time"
    assert session.run_timed(seen)[1] == taken_ms, "the time is that of the run"
    expected = open_session(tmp_path, variant).run(new)
    np.testing.assert_array_equal(session.run_timed(new)[0]["y"], expected["y"])


class _TimedSession(Session):
    """Each inference takes so many milliseconds of processor time."""

    def __init__(self, taken_ms: float) -> None:
        self.inputs = ()
        self._taken_ms = taken_ms
        self.now_s = 100.0

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        self.now_s += self._taken_ms / 1000
        return dict(feeds), self._taken_ms


@pytest.mark.parametrize(("taken_ms", "ran"), [(10.0, 8), (300.0, 4), (5000.0, 2)])
def test_samples_beyond_the_least_run_as_long_as_there_is_time(taken_ms: float, ran: int) -> None:
    timed = _TimedSession(taken_ms)
    session = RememberingSession(timed, clock=lambda: timed.now_s)
    outputs = session.run_first([{} for _ in range(8)], least=2, more_s=1.0)
    assert len(outputs) == ran


@pytest.mark.parametrize(
    "change",
    [
        {"session_options": {"session.graph_optimization_level": "basic"}},
        {"device": "npu"},
    ],
)
def test_other_options_are_opened_anew(
    tmp_path: Path, variant: Variant, change: Mapping[str, Any]
) -> None:
    kept, opened = keep(tmp_path, variant)
    other = msgspec.structs.replace(variant, **change)
    assert kept.open_variant(tmp_path, other, threads=0) is not opened.session


def test_a_number_of_threads_is_opened_anew(tmp_path: Path, variant: Variant) -> None:
    kept, opened = keep(tmp_path, variant)
    assert kept.open_variant(tmp_path, variant, threads=1) is not opened.session


def test_other_bytes_and_other_files_are_opened_anew(tmp_path: Path, variant: Variant) -> None:
    kept, opened = keep(tmp_path, variant)
    save_variant(tmp_path, variant, scale=3.0)
    other = with_files(tmp_path, variant)
    assert kept.open_variant(tmp_path, other, threads=0) is not opened.session
    kept, opened = keep(tmp_path, other)
    (tmp_path / variant.folder / "weights.bin").write_bytes(b"1")
    more = with_files(tmp_path, variant)
    assert kept.open_variant(tmp_path, more, threads=0) is not opened.session


def rehearse(process: ProviderProcess, folder: Path, variant: Variant) -> ProbeResult:
    """Asks the child that runs for a probe."""
    request = ProbeRequest(
        bundle_folder=str(folder), variant=variant, timeout_s=400.0, golden_s=0.0, runs=1, threads=0
    )
    line = msgspec.json.encode(Asked(probe=request))
    return read_ending(variant, process.ask(line, timeout_s=400.0))


def test_a_bundle_that_is_not_what_was_tried_fails_its_rehearsal(tmp_path: Path) -> None:
    tried, variant = tmp_path / "tried", make_variant()
    save_variant(tried, variant)
    session, inputs = open_session(tried, variant), make_inputs(3)
    golden = Golden(inputs=inputs, outputs=tuple(session.run(feeds) for feeds in inputs))
    bundles = {scale: tmp_path / f"bundle-{scale:g}" for scale in (1.0, 3.0)}
    for scale, folder in bundles.items():
        save_variant(folder, variant, scale=scale)
        (folder / GOLDEN_FILE).parent.mkdir()
        write_golden(folder / GOLDEN_FILE, golden)
    with ProviderProcess() as process:
        trial = try_model(
            tried / variant.folder / variant.model_file,
            Samples(count=3, read=lambda index: inputs[index], source="a test"),
            ON_CPU,
            timeout_s=400.0,
            process=process,
            variant=variant.name,
        )
        results = {
            scale: rehearse(process, folder, with_files(folder, variant))
            for scale, folder in bundles.items()
        }
        again = rehearse(process, bundles[1.0], with_files(bundles[1.0], variant))
    for got, expected in zip(trial.outputs, golden.outputs, strict=True):
        np.testing.assert_array_equal(got["y"], expected["y"])
    assert results[1.0].right, results[1.0].because
    assert not results[3.0].right, "its bytes are others, and so its session"
    assert again.right, again.because
    assert [path.name for path in (tried / variant.folder).iterdir()] == [variant.model_file]
