"""Texts about gates and decisions: each fact once, and no empty text."""

import io

from msgspec.structs import replace
from rich.console import Console

from edgepack.fleet.commands.show_gates import gates_tables
from edgepack.fleet.documents.audit import Number
from edgepack.fleet.documents.gates import GateVerdict, GateView
from edgepack.fleet.documents.wording import details_line, quiet_gates, told_gates


def view(name: str, verdict: GateVerdict, hardware_class: str = "") -> GateView:
    return GateView(
        name=name,
        hardware_class=hardware_class,
        threshold=1.1,
        comparison="times",
        unit="ms",
        devices=3,
        value=None,
        bound=None,
        before=None,
        now=None,
        verdict=verdict,
        because="",
    )


def test_a_narrow_terminal_cuts_nothing_off() -> None:
    told = Console(width=80, record=True, file=io.StringIO())
    measured = replace(
        view("temperature", "breach", "x86_64/avx512_vnni/AMD EPYC"),
        unit="°C",
        before=53.25,
        now=66.75,
        value=13.5,
        bound=12.25,
        threshold=10.0,
    )
    told.print(*gates_tables((measured,)))
    printed = told.export_text()
    assert "temperature" in printed
    assert "…" not in printed


def test_a_first_release_has_one_line_for_all_that_has_no_baseline() -> None:
    gates = (
        view("failures", "pass"),
        *(view(name, "no baseline", board) for name in ("p95", "errors") for board in ("a", "b")),
        view("shadow", "no evidence"),
        view("drift", "off"),
    )
    assert [gate.name for gate in told_gates(gates)] == ["failures"]
    assert quiet_gates(gates) == (
        "no baseline: p95, errors (nothing is known of the release before)",
        "no evidence: shadow",
        "off: drift",
    )


def test_what_is_breached_comes_first_and_the_rest_in_its_order() -> None:
    gates = (view("failures", "pass"), view("p95", "too few"), view("errors", "breach"))
    assert [gate.name for gate in told_gates(gates)] == ["errors", "failures", "p95"]


def test_a_gate_that_was_told_elsewhere_is_named_with_its_hardware() -> None:
    gates = (view("p95", "breach", "a"), view("p95", "no evidence", "b"))
    assert [gate.hardware_class for gate in told_gates(gates)] == ["a"]
    assert quiet_gates(gates) == ("no evidence: p95 on b",)


def test_what_is_empty_is_left_out_of_what_an_act_rested_on() -> None:
    details: dict[str, Number] = {
        "devices": 3,
        "max_failed_share": 0.1,
        "soak_s": 60.0,
        "max_per_site": 0,
        "window": "",
        "not_before": None,
        "supersede": False,
        "approve_waves": True,
    }
    assert details_line(details) == (
        "devices 3, max failed share 0.1, soak s 60, max per site 0, approve waves"
    )


def test_the_audit_log_prints_hardware_as_it_is_named() -> None:
    details: dict[str, Number] = {"p95 sim-x86_64": 1.3, "deadline_s": 60.0, "is_split": True}
    assert details_line(details) == "p95 sim-x86_64 1.3, deadline s 60, is split"
