"""The dress rehearsal of signed bundles, in real processes."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace

from edgepack.agent.runtime.facts import read_device_facts
from edgepack.bundle.keys import PrivateKey
from edgepack.errors import BuildError
from edgepack.packager.bundling import rehearse as rehearse_module
from edgepack.packager.bundling.rehearse import rehearse
from edgepack.packager.progress import silent
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.runtime.provider_process import MODULE, ProviderProcess
from tests.simulators.bundles import make_bundle


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class CountedProcess(ProviderProcess):
    """A real process that records the reasons of its starts, and the commands."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.commands: list[Sequence[str] | None] = []

    def start_anew(
        self, subject: str, first: bytes = b"", command: Sequence[str] | None = None
    ) -> None:
        self.started.append(subject)
        self.commands.append(command)
        super().start_anew(subject, first, command)


def test_the_variant_whose_process_still_runs_goes_first_and_needs_no_other(
    tmp_path: Path, key: PrivateKey
) -> None:
    bundle = make_bundle(tmp_path / "bundle", key, variants=("first", "last"))
    told: list[str] = []
    with CountedProcess() as process:
        process.start_anew("last")
        rehearsal = rehearse(
            bundle.folder, key.public_key(), process, lambda step: told.append(str(step))
        )
    assert process.started == ["last", "first"]
    steps = [step for step in told if step.endswith("rehearsing")]
    assert steps == ["last: rehearsing", "first: rehearsing"]
    assert rehearsal.choice.chosen in {"first", "last"}
    for name in ("first", "last"):
        seen = rehearsal.by_variant[name]
        assert seen.ran
        assert seen.because.startswith("Ran here: output 'y': cosine 1.00000")
        assert seen.because.endswith("3 of 3 golden samples")


def test_a_variant_that_is_wrong_fails_the_build_by_name(tmp_path: Path, key: PrivateKey) -> None:
    bundle = make_bundle(tmp_path / "bundle", key, is_wrong=True)
    with ProviderProcess() as process, pytest.raises(BuildError) as caught:
        rehearse(bundle.folder, key.public_key(), process, silent)
    assert caught.value.problem.startswith("variant 'cpu' fails its rehearsal: output 'y': cosine")
    assert caught.value.found_in == "model/cpu/model.onnx on CPUExecutionProvider"
    assert caught.value.remedy is not None
    assert "operators that CPUExecutionProvider computes rightly" in caught.value.remedy


def test_a_variant_with_a_toolchain_is_probed_in_that(tmp_path: Path, key: PrivateKey) -> None:
    pinned = PinnedToolchain(python=sys.executable, facts=read_device_facts())
    bundle = make_bundle(tmp_path / "bundle", key, variants=("cpu", "fp32"))
    with CountedProcess() as process:
        rehearsal = rehearse(
            bundle.folder, key.public_key(), process, silent, toolchains={"cpu": pinned}
        )
    assert process.started == ["cpu", "fp32"]
    assert process.commands == [pinned.command(MODULE), None]
    there, here = (rehearsal.by_variant[name].because for name in ("cpu", "fp32"))
    assert there.startswith(f"Ran in its toolchain, {pinned.words}: output 'y': cosine 1.00000")
    assert here.startswith("Ran here: ")

    wrong = make_bundle(tmp_path / "wrong", key, is_wrong=True)
    with ProviderProcess() as other, pytest.raises(BuildError) as caught:
        rehearse(wrong.folder, key.public_key(), other, silent, toolchains={"cpu": pinned})
    assert caught.value.found_in == (
        f"model/cpu/model.onnx on CPUExecutionProvider of its toolchain, {pinned.words}"
    )


def test_what_the_time_of_the_build_does_not_allow_is_reported_as_not_rehearsed(
    tmp_path: Path, key: PrivateKey
) -> None:
    bundle = make_bundle(tmp_path / "bundle", key, variants=("cpu", "fp32"))
    times = iter([0.0, 0.0, 0.0])  # its end, what is left, and the end of the tail
    deadline = Deadline(0.0, lambda: next(times, 100.0))
    with CountedProcess() as process:
        rehearsal = rehearse(bundle.folder, key.public_key(), process, silent, None, deadline)
    assert process.started == [], "no child is started that cannot end in time"
    because = "Not run here: the time of the build was used up"
    assert [seen.because for seen in rehearsal.by_variant.values()] == [because] * 2
    assert rehearsal.choice.chosen == ""
    assert rehearsal.choice.because == (
        "cpu, fp32 not rehearsed: the time of the build was used up"
    )


def test_a_simulator_s_time_is_not_kept(tmp_path: Path, key: PrivateKey) -> None:
    facts = read_device_facts()
    simulated = tuple(replace(provider, is_simulator=True) for provider in facts.providers)
    pinned = PinnedToolchain(python=sys.executable, facts=replace(facts, providers=simulated))
    bundle = make_bundle(tmp_path / "bundle", key, variants=("cpu", "fp32"))
    with ProviderProcess() as process:
        rehearsal = rehearse(
            bundle.folder, key.public_key(), process, silent, toolchains={"cpu": pinned}
        )
    there, here = (rehearsal.by_variant[name] for name in ("cpu", "fp32"))
    assert (there.ran, there.is_simulator, there.latency_ms) == (True, True, None)
    assert here.latency_ms


def test_a_simulator_has_more_time(
    tmp_path: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearse_module, "_MEASURED", (5, 0.0))
    facts = read_device_facts()
    simulated = tuple(replace(provider, is_simulator=True) for provider in facts.providers)
    pinned = PinnedToolchain(python=sys.executable, facts=replace(facts, providers=simulated))
    bundle = make_bundle(tmp_path / "bundle", key, variants=("cpu",))
    with ProviderProcess() as process:
        rehearsal = rehearse(
            bundle.folder, key.public_key(), process, silent, toolchains={"cpu": pinned}
        )
    assert rehearsal.by_variant["cpu"].ran


def test_a_variant_that_gives_no_outputs_is_not_told_of_tolerances(
    tmp_path: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "bundle", key)
    monkeypatch.setattr(rehearse_module, "_MEASURED", (5, 0.0))
    with ProviderProcess() as process, pytest.raises(BuildError) as caught:
        rehearse(bundle.folder, key.public_key(), process, silent)
    assert caught.value.problem.startswith("variant 'cpu' fails its rehearsal: the probe ")
    assert caught.value.remedy == (
        "a device would refuse it too: take another profile, or export the model with operators "
        "that CPUExecutionProvider has"
    )
