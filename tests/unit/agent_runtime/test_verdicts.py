"""Verdicts: kept as long as everything that made a variant right is the same."""

from pathlib import Path

import pytest

from edgepack.agent.runtime.verdicts import MAX_VERDICTS, VERDICTS_FILE, Verdicts, probe_cache_key
from edgepack.wire.reports import DeviceFacts, ProbeResult, ProviderFacts
from tests.simulators.manifests import CPU, make_variant
from tests.unit.agent_runtime.examples import make_facts

RIGHT = ProbeResult(variant="cpu", provider=CPU, right=True, because="cosine 1", latency_ms=1.0)
WRONG = ProbeResult(variant="cpu", provider=CPU, right=False, because="cosine 0")
FACTS = make_facts(drivers={"amdxdna": "2.20"})
NEWER_PROVIDER = ProviderFacts(name=CPU, available=True, because="", version="9", devices=("cpu",))


def test_a_right_verdict_is_recalled_after_a_restart(tmp_path: Path) -> None:
    circumstances = probe_cache_key("d", make_variant(), FACTS, threads=1)
    Verdicts(tmp_path).keep(circumstances, RIGHT)
    assert Verdicts(tmp_path).recall(circumstances) == RIGHT


def test_a_variant_that_was_right_is_probed_once_and_a_wrong_one_each_time(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    probed: list[bool] = []

    def probe(result: ProbeResult) -> ProbeResult:
        probed.append(result.right)
        return result

    circumstances = probe_cache_key("d", make_variant(), FACTS, threads=1)
    for result in (WRONG, WRONG, RIGHT, RIGHT):
        assert verdicts.get_or_probe(circumstances, lambda result=result: probe(result)) == result  # type: ignore[misc]
    assert probed == [False, False, True]


def test_a_wrong_verdict_is_not_kept(tmp_path: Path) -> None:
    circumstances = probe_cache_key("d", make_variant(), FACTS, threads=1)
    verdicts = Verdicts(tmp_path)
    verdicts.keep(circumstances, WRONG)
    assert verdicts.recall(circumstances) is None


@pytest.mark.parametrize(
    ("digest", "variant", "facts", "threads"),
    [
        ("other", "cpu", FACTS, 1),
        ("d", "fp32", FACTS, 1),
        ("d", "cpu", FACTS, 2),
        ("d", "cpu", make_facts(drivers={"amdxdna": "2.21"}), 1),
        ("d", "cpu", make_facts(drivers={"amdxdna": "2.20"}, runtime="1.32.0"), 1),
        ("d", "cpu", make_facts(drivers={"amdxdna": "2.20"}, arch="aarch64"), 1),
        ("d", "cpu", make_facts(drivers={"amdxdna": "2.20"}, providers=(NEWER_PROVIDER,)), 1),
    ],
)
def test_a_verdict_is_void_when_any_circumstance_changes(
    tmp_path: Path, digest: str, variant: str, facts: DeviceFacts, threads: int
) -> None:
    verdicts = Verdicts(tmp_path)
    verdicts.keep(probe_cache_key("d", make_variant(), FACTS, threads=1), RIGHT)
    now = probe_cache_key(digest, make_variant(variant), facts, threads=threads)
    assert verdicts.recall(now) is None


def test_the_oldest_verdicts_give_way(tmp_path: Path) -> None:
    verdicts = Verdicts(tmp_path)
    all_of_them = [
        probe_cache_key(str(number), make_variant(), FACTS, threads=1)
        for number in range(MAX_VERDICTS + 1)
    ]
    for circumstances in all_of_them:
        verdicts.keep(circumstances, RIGHT)
    assert verdicts.recall(all_of_them[0]) is None
    assert verdicts.recall(all_of_them[-1]) == RIGHT


def test_a_damaged_file_means_probing_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / VERDICTS_FILE).write_bytes(b"[{")
    circumstances = probe_cache_key("d", make_variant(), FACTS, threads=1)
    assert Verdicts(tmp_path).recall(circumstances) is None
    assert "the list of verdicts was damaged" in caplog.text
