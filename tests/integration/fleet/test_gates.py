"""Rollouts stop by themselves where devices measure something worse: real messages, real broker."""

import json

from edgepack.fleet.documents.rollouts import RolloutView, Selector
from edgepack.fleet.simulation.behaviour import parse_change
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate, edgepack

WORSE = "sim-arm-a76"
CHANGES = {
    "p95": "p95=1.8",
    "drift": "drift=0.9",
    "shadow": "shadow=0.4",
    "first_token": "first_token=1.8",
}
COUNT = 30
PLAN = (
    *("--waves", "100%", "--control", "30%", "--split-by", "hardware", "--on-breach", "rollback"),
    *("--soak", "0.2", "--deadline", "400", "--first-look", "4", "--gate", "drift=0.3"),
    *("--gate", "first_token=1.25"),
)


def states(view: RolloutView, of_class: dict[str, str], *, worse: bool) -> set[str]:
    parts = (part for part in view.assignments if (of_class[part.device] == WORSE) == worse)
    return {part.state for part in parts}


def test_a_class_that_gets_worse_is_rolled_back_alone_and_a_hot_day_stops_nothing(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve("--value-seconds", "2")
    for gate, change in CHANGES.items():
        worse = parse_change(f"{WORSE}:{change}")
        asked = {"count": COUNT, "group": gate, "prefix": gate, "measure_s": 2.0}
        simulation(fleet, **asked, changes=(worse,))
    # All of these devices are half as fast from the moment on that the first device switches.
    simulation(fleet, count=COUNT, group="heat", prefix="heat", measure_s=2.0, heat=1.5)
    first = fleet.roll_out(make_bundle("1.0.0", 1), Selector(kind="all"), waves="100%")
    fleet.wait_for(first, "FINISHED")
    fleet.wait_until(
        lambda: sum(row.inferences for row in fleet.rollout(first).latency) > 4 * COUNT * 200 * 5,
        "devices measured the first release",
    )
    of_class = {view.device: view.hardware_class for view in fleet.client.devices()}
    bundle = str(make_bundle("2.0.0", 2))
    preview = edgepack(fleet, "rollout", "start", bundle, "--group", "p95", *PLAN, "--dry-run")
    assert f"p95 of {WORSE}: 1." in " ".join(preview.stdout.split()), preview
    assert "controls (noise 0.0" in " ".join(preview.stdout.split())
    names = {}
    for gate in (*CHANGES, "heat"):
        done = edgepack(fleet, "rollout", "start", bundle, "--group", gate, *PLAN, "--json")
        assert done.returncode == 0, done.stderr
        names[gate] = json.loads(done.stdout)["rollout"]

    hot = fleet.wait_for(names["heat"], "FINISHED", "PAUSED", "ABORTED")
    assert (hot.state, hot.counts, hot.held) == ("FINISHED", {"COMMITTED": COUNT}, {}), hot.held
    compared = [view for view in hot.gates if view.name == "p95" and view.devices >= 3]
    assert compared
    assert all(view.verdict == "pass" and (view.controls or 0) > 0 for view in compared)
    assert all(0.85 < (view.value or 0) < 1.15 for view in compared), "against controls"
    for gate in CHANGES:
        name = names[gate]
        view = fleet.wait_for(name, "FINISHED", "PAUSED", "ABORTED")
        assert view.state == "FINISHED", view.because
        assert set(view.held) == {WORSE}, [g for g in view.gates if g.name == gate]
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
        if model.active and view.group != "heat"
    }
    assert versions == {(True, "1.0.0"), (False, "2.0.0")}
    shown = " ".join(edgepack(fleet, "rollout", "status", names["p95"]).stdout.split())
    assert f"{WORSE} is held back: p95 of {WORSE}" in shown
    assert "controls, 1." in shown
