"""Choice: the fastest correct candidate, with the reason in numbers and every fallback reported."""

from edgepack.agent.config import ProviderConfig
from edgepack.agent.runtime.choice import choose
from edgepack.wire.reports import Choice, ProbeResult
from tests.simulators.manifests import CPU, QNN
from tests.unit.agent_runtime.examples import make_facts

OPENVINO = "OpenVINOExecutionProvider"


def probe(
    variant: str,
    provider: str,
    latency_ms: float | None,
    *,
    right: bool = True,
    because: str = "cosine 1.0",
) -> ProbeResult:
    return ProbeResult(
        variant=variant, provider=provider, right=right, because=because, latency_ms=latency_ms
    )


def decide(
    *probes: ProbeResult, wanted: str = "", rejected: dict[str, str] | None = None
) -> Choice:
    preference = ("npu", "openvino", "cpu", "fp32")
    config = ProviderConfig(wanted=wanted, allow_simulator=True)
    return choose(probes, rejected or {}, make_facts(), config, preference)


def test_the_fastest_that_is_right_serves_and_the_numbers_say_why() -> None:
    choice = decide(
        probe("openvino", OPENVINO, 1.9),
        probe("cpu", CPU, 0.8),
        probe("fp32", CPU, 0.1, right=False),
    )
    assert (choice.chosen, choice.provider, choice.is_fallback) == ("cpu", CPU, False)
    assert choice.because == (
        f"cpu on {CPU} is the fastest that is right: 0.8 ms "
        f"against 1.9 ms of openvino on {OPENVINO}"
    )
    assert len(choice.probes) == 3


def test_another_than_the_wanted_provider_is_a_fallback_with_its_reason() -> None:
    choice = decide(
        probe("npu", QNN, None, right=False, because="the probe crashed with SIGSEGV"),
        probe("cpu", CPU, 3.0),
        wanted=QNN,
    )
    assert choice.is_fallback
    assert choice.wanted == QNN
    assert choice.because == (
        f"cpu on {CPU} is the only candidate that is right: 3 ms; "
        f"{QNN} is wanted: the probe crashed with SIGSEGV"
    )


def test_a_wanted_provider_that_is_slower_is_told_as_slower() -> None:
    choice = decide(probe("openvino", OPENVINO, 9.0), probe("cpu", CPU, 3.0), wanted=OPENVINO)
    assert choice.chosen == "cpu"
    assert choice.because.endswith(f"{OPENVINO} is wanted: it is slower")


def test_a_wanted_provider_that_was_rejected_is_told_with_the_rejection() -> None:
    choice = decide(
        probe("cpu", CPU, 3.0),
        wanted=QNN,
        rejected={"npu": f"{QNN} is not available: no plug-in", "other": "it is for aarch64"},
    )
    assert f"{QNN} is wanted: npu: {QNN} is not available: no plug-in" in choice.because
    assert "aarch64" not in choice.because
    assert choice.rejected["other"] == "it is for aarch64"


def test_a_wanted_simulator_serves_though_its_time_is_long() -> None:
    choice = decide(probe("npu", QNN, 4000.0), probe("cpu", CPU, 1.0), wanted=QNN)
    assert (choice.chosen, choice.is_fallback) == ("npu", False)
    assert "it is simulated, so its time says nothing" in choice.because


def test_a_simulator_that_nobody_wants_does_not_win_by_its_time() -> None:
    choice = decide(probe("npu", QNN, 0.001), probe("cpu", CPU, 50.0))
    assert choice.chosen == "cpu"
    assert "the only candidate that is right and not simulated: 50 ms" in choice.because


def test_a_simulator_serves_when_nothing_real_is_right() -> None:
    choice = decide(probe("npu", QNN, 9.0), probe("cpu", CPU, 1.0, right=False), wanted=CPU)
    assert choice.chosen == "npu"
    assert choice.is_fallback
    assert "no real provider is; it is simulated here" in choice.because


def test_among_equally_fast_the_accelerator_and_then_the_manifest_decides() -> None:
    accelerated = decide(probe("cpu", CPU, 1.00), probe("openvino", OPENVINO, 1.03))
    assert accelerated.chosen == "openvino"
    assert "preferred among equally fast: 1.03 ms, 1 ms of cpu" in accelerated.because
    assert decide(probe("fp32", CPU, 1.0), probe("cpu", CPU, 1.0)).chosen == "cpu"
    wanted = decide(probe("cpu", CPU, 1.0), probe("openvino", OPENVINO, 1.0), wanted=CPU)
    assert wanted.chosen == "cpu"


def test_where_times_are_equal_to_the_digit_nothing_is_called_the_fastest() -> None:
    choice = decide(probe("fp32", CPU, 1.0), probe("cpu", CPU, 1.0))
    assert choice.because == (
        f"cpu on {CPU} is preferred among equally fast: 1 ms, 1 ms of fp32 on {CPU}"
    )


def test_of_two_simulated_variants_the_manifest_decides_whatever_their_times() -> None:
    for wanted in (QNN, CPU):
        choice = decide(probe("openvino", QNN, 1.0), probe("npu", QNN, 9.0), wanted=wanted)
        assert choice.chosen == "npu"


def test_when_nothing_is_right_nothing_is_chosen_and_every_reason_is_told() -> None:
    choice = decide(
        probe("cpu", CPU, 1.0, right=False, because="output 'y': cosine 0.1"),
        probe("npu", QNN, None, right=False, because="no answer within 2 s"),
        wanted=CPU,
    )
    assert (choice.chosen, choice.provider) == ("", "")
    assert "cosine 0.1" in choice.because
    assert "no answer within 2 s" in choice.because


def test_without_candidates_the_rejections_are_the_reason() -> None:
    choice = decide(rejected={"npu": "it is for aarch64, this device is x86_64"})
    assert choice.because == (
        "no variant fits this device: npu: it is for aarch64, this device is x86_64"
    )
