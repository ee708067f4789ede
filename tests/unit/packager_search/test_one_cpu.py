"""Only a simulator that computes on one thread is kept to one CPU."""

import os
import platform

import pytest

from edgepack.agent.runtime.one_cpu import keep_to_one_cpu


@pytest.mark.parametrize(
    ("providers", "machine", "is_kept"),
    [
        (("QNNExecutionProvider",) * 3, "x86_64", True),
        (("QNNExecutionProvider",), "aarch64", False),
        (("CPUExecutionProvider",), "x86_64", False),
        (("QNNExecutionProvider", "CPUExecutionProvider"), "x86_64", False),
    ],
)
def test_a_serial_simulator_gets_one_of_the_cpus_that_are_allowed(
    providers: tuple[str, ...], machine: str, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[set[int]] = []
    monkeypatch.setattr(platform, "machine", lambda: machine)
    allowed = os.sched_getaffinity(0)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: given.append(cpus))
    keep_to_one_cpu(*providers)
    assert len(given) == is_kept
    if given:
        assert len(given[0]) == 1
        assert given[0] <= allowed
