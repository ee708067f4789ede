"""A rollout that a gate rolled back is shown as decided: command, page, report, start page."""

from pathlib import Path

from edgepack.fleet.documents.rollouts import Selector
from tests.integration.fleet.conftest import CAMERAS, MakeBundle, Serve, Simulate, edgepack
from tests.integration.fleet.dashboard import Visitor

GOOD, BAD = 6, 3


def needs(visitor: Visitor) -> str:
    return visitor.get("/").text.partition('<ul class="needs">')[2].partition("</section>")[0]


def test_a_rollout_that_a_gate_took_back_is_shown_as_it_was_decided(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    good = simulation(fleet, count=GOOD, group="cameras", prefix="good")
    simulation(fleet, count=BAD, group="cameras", prefix="bad", fail_rate=1.0)
    fleet.wait_for(
        fleet.roll_out(make_bundle("1.0.0", 1), CAMERAS, max_failed_share=1.0, waves="100%"),
        "FINISHED",
    )
    fleet.roll_out(
        make_bundle("2.0.0", 2),
        CAMERAS,
        waves="100%",
        min_sample=GOOD + BAD,
        on_breach="rollback",
    )
    fleet.wait_for("r2", "ABORTED")
    back = fleet.wait_for("r3", "FINISHED")
    assert back.takes_back is not None
    visitor = Visitor(fleet.url).log_in((fleet.data / "token").read_text().strip())

    view = fleet.rollout("r2")
    (failures,) = [gate for gate in view.gates if gate.name == "failures"]
    assert (failures.verdict, failures.devices) == ("breach", GOOD + BAD)
    assert failures.now is not None
    assert round(failures.now * failures.devices) == BAD
    assert view.gates_at is not None
    assert view.stopped_by == "gate failures"
    shown = edgepack(fleet, "rollout", "status", "r2").stdout
    assert "stopped by gate failures" in shown
    assert "breach" in shown
    assert "gates as measured at the decision" in shown
    page = visitor.get("/rollouts/r2").text
    assert "Stopped by gate failures" in page
    assert '<span class="tag bad">breach</span>' in page
    assert "As measured at the decision" in page
    for name in ("r2", "r3"):
        assert f"/rollouts/{name}/rollback" not in visitor.get(f"/rollouts/{name}").text
    done = edgepack(fleet, "rollout", "report", "r2", "-o", str(tmp_path / "r2.html"))
    assert done.returncode == 0, done.stderr
    assert '<span class="tag bad">breach</span>' in (tmp_path / "r2.html").read_text()

    first = needs(visitor)
    assert "/rollouts/r2" in first
    assert "Stopped by gate failures" in first
    assert f"{BAD} of {GOOD + BAD} decided devices" in first
    # Neither is the release that was taken back offered first for the next rollout.
    form = visitor.get("/rollouts/new").text
    assert f'value="{view.bundle.digest}" selected' not in form
    assert "stopped by gate failures in r2" in form

    # The audit names hardware as devices do.
    hardware = fleet.client.devices()[0].hardware_class
    entries = edgepack(fleet, "fleet", "audit", "--rollout", "r2").stdout
    assert "_" not in hardware or hardware.replace("_", " ") not in entries

    # Once a person started a newer release, nothing more is needed.
    third = Selector(kind="devices", devices=tuple(f"good-{n}" for n in range(1, GOOD + 1)))
    fleet.wait_for(fleet.roll_out(make_bundle("3.0.0", 3), third, waves="100%"), "FINISHED")
    assert "/rollouts/r2" not in needs(visitor)

    # Devices whose simulation ended are offline.
    good.stop()
    fleet.wait_until(lambda: fleet.info().online == BAD, "those that ended are offline")


def test_a_release_that_a_gate_stopped_stays_marked_after_a_person_aborts(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=4, group="cameras", fail_rate=1.0)
    bundle = make_bundle("1.0.0", 1)
    fleet.roll_out(bundle, CAMERAS, waves="100%", min_sample=4, on_breach="pause")
    stopped = fleet.wait_for("r1", "PAUSED")
    assert stopped.stopped_by == "gate failures"
    done = edgepack(fleet, "rollout", "abort", "r1")
    assert done.returncode == 0, done.stderr
    visitor = Visitor(fleet.url).log_in((fleet.data / "token").read_text().strip())
    assert "/rollouts/r1" not in needs(visitor)
    form = visitor.get("/rollouts/new").text
    assert f'value="{stopped.bundle.digest}" selected' not in form
    assert "stopped by gate failures in r1: 4 of 4" in form


def test_a_rollback_of_a_finished_rollout_does_not_state_that_it_ends(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    simulation(fleet, count=2, group="cameras")
    for number in (1, 2):
        bundle = make_bundle(f"{number}.0.0", number)
        fleet.wait_for(fleet.roll_out(bundle, CAMERAS, waves="100%"), "FINISHED")
    preview = edgepack(fleet, "rollout", "rollback", "r2", "--dry-run")
    assert preview.returncode == 0, preview.stderr
    assert "r2 ends" not in preview.stdout
    assert "r2 is over" in preview.stdout
    assert "no device that joins later" in " ".join(preview.stdout.split())
