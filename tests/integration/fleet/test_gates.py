"""Rollouts stop by themselves where devices measure something worse: real messages, real broker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgepack.fleet.documents.rollouts import RolloutSettings, RolloutView, Selector
from edgepack.fleet.simulation.behaviour import parse_change
from tests.integration.fleet.conftest import edgepack

Serve = Callable[..., Any]
Simulate = Callable[..., Any]
MakeBundle = Callable[..., Path]

WORSE = "sim-arm-a76"
CHANGES = {"p95": "p95=1.3", "drift": "drift=0.6", "shadow": "shadow=0.2"}
PLAN = RolloutSettings(
    waves="100%",  # 1 or 2 devices of a class would hold it for a person
    soak_s=0.2,
    deadline_s=60.0,
    split_by="hardware",
    on_breach="rollback",
    gates={"drift": 0.3},
)


def states(view: RolloutView, of_class: dict[str, str], *, worse: bool) -> set[str]:
    parts = (part for part in view.assignments if (of_class[part.device] == WORSE) == worse)
    return {part.state for part in parts}


def test_a_class_that_gets_worse_is_rolled_back_alone_while_the_others_go_on(
    begin: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = begin()
    for gate, change in CHANGES.items():
        worse = parse_change(f"{WORSE}:{change}")
        simulation(fleet, count=18, group=gate, prefix=gate, changes=(worse,))
    first = fleet.roll_out(make_bundle("1.0.0", 1), Selector(kind="all"), waves="100%")
    fleet.wait_for(first, "FINISHED")
    of_class = {view.device: view.hardware_class for view in fleet.client.devices()}
    release = fleet.client.publish(make_bundle("2.0.0", 2))
    names = {
        gate: fleet.client.start_rollout(release, Selector(kind="group", group=gate), PLAN).rollout
        for gate in CHANGES
    }
    for gate, name in names.items():
        view = fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED")
        assert view.state == "FINISHED", view.because
        assert set(view.held) == {WORSE}
        assert view.held[WORSE].startswith(f"{gate} of {WORSE}: ")
        assert view.because.endswith(f"; held back: {WORSE}")
        assert states(view, of_class, worse=False) == {"COMMITTED"}
        assert {"RECALLED"} <= states(view, of_class, worse=True) <= {"RECALLED", "WITHDRAWN"}
        (breach,) = fleet.client.audit(rollout=name, action="rollout.breach")
        assert breach.actor == f"gate {gate}"
        assert breach.numbers["hardware_class"] == WORSE
        assert float(breach.numbers["bound"] or 0) > float(breach.numbers["threshold"] or 0)
    for back in fleet.client.rollouts():
        if back.takes_back is not None:
            fleet.wait_for(back.rollout, "FINISHED")
    versions = {
        (of_class[view.device] == WORSE, model.active.version)
        for view in fleet.client.devices()
        for model in view.models
        if model.active
    }
    assert versions == {(True, "1.0.0"), (False, "2.0.0")}
    shown = edgepack(fleet, "rollout", "status", names["p95"]).stdout
    assert f"{WORSE} is held back: p95 of {WORSE}" in shown
