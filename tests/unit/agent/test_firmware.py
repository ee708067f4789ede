"""Firmware and model as a single release: the life cycle's table x faults, on a simulated board."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, get_args

import pytest

from edgepack.agent.cli.assembly import open_firmware
from edgepack.agent.config import AgentConfig, FirmwareConfig, LimitConfig, TrustConfig
from edgepack.agent.hooks.firmware import STEPS, FirmwareStep, markdown
from edgepack.agent.telemetry.collector import Collected
from edgepack.agent.update.firmware import MAX_LEAVES, MAX_RETURNS, REVERT_TRIES
from edgepack.agent.update.lifecycle import TABLE, State
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.bundle.manifest import Firmware
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.world import PowerCutError, World, hook_says
from tests.unit.agent.conftest import FIRMWARE, Releases
from tests.unit.agent.test_shadow_first import pairs

Fault = Literal["kill", "power cut", "full disk", "hook fails", "hook hangs", "wrong", "falls back"]
WITH_FIRMWARE: tuple[State, ...] = tuple(
    state
    for state, row in TABLE.items()
    if row.is_on_trial
    or row.firmware
    or state in {one.firmware for one in TABLE.values()}
    or any(state in step.states for step in STEPS.values())
)
"""States that differ for a release with firmware."""

BOTH, NONE = "COMMITTED", "ROLLED_BACK"
BEFORE_TRIAL: dict[Fault, str] = {
    "kill": BOTH,
    "power cut": BOTH,
    "full disk": BOTH,
    "hook fails": NONE,
    "hook hangs": NONE,
    "wrong": NONE,
    "falls back": NONE,
}
ON_TRIAL: dict[Fault, str] = {
    "kill": BOTH,
    "power cut": NONE,  # The bootloader starts a firmware on trial once.
    "full disk": BOTH,
    "hook fails": BOTH,  # The state runs no step.
    "hook hangs": BOTH,
    "wrong": BOTH,  # The image was written before.
    "falls back": NONE,
}
CONFIRMING: dict[Fault, str] = ON_TRIAL | {"hook fails": NONE, "hook hangs": NONE}
GOING_BACK: dict[Fault, str] = dict.fromkeys(get_args(Fault), NONE)
ENDS: dict[State, dict[Fault, str]] = {
    "OFFERED": BEFORE_TRIAL,
    "STAGED": BEFORE_TRIAL | {"hook fails": BOTH, "hook hangs": BOTH},
    "INSTALLING": BEFORE_TRIAL,
    "REBOOTING": BEFORE_TRIAL | {"wrong": BOTH},
    "PROBING": ON_TRIAL,
    "SHADOWING": ON_TRIAL,
    "ACTIVATING": ON_TRIAL,
    "SOAKING": ON_TRIAL,
    "CONFIRMING": CONFIRMING,
    "ROLLING_BACK": GOING_BACK,
    "REVERTING": GOING_BACK,
}
REFUSES = hook_says("refuse", "the model disturbs the camera")
SAID = {
    "hook fails": hook_says("refuse", "the installer says no"),
    "hook hangs": hook_says("refuse", "hook firmware did not end within 30 s and was killed"),
}


def steps_of(state: State) -> tuple[FirmwareStep, ...]:
    return tuple(step for step in get_args(FirmwareStep) if state in STEPS[step].states)


def check_both(world: World, releases: Releases, end: str) -> None:
    """Check that model and firmware are both new, or both old."""
    board, pointer = world.board, world.pointer
    expected = {"COMMITTED": ("2.0", 2), "ROLLED_BACK": ("1.0", 1)}[end]
    assert pointer is not None
    assert pointer.committed
    assert (board.version, pointer.bundle.release) == expected, world.journal.because
    assert board.is_settled
    assert world.models.facts.firmware == board.version
    kept = {releases.one.ref.digest} | ({releases.firm.ref.digest} if end == BOTH else set())
    assert {slot.name for slot in (world.state_dir / "slots").iterdir()} == kept


def bring(world: World, releases: Releases, at: State | None = None) -> None:
    """Offer the release with firmware, on a way through a state."""
    if at in ("ROLLING_BACK", "REVERTING"):
        world.hook_answers["activating.after"] = [REFUSES, hook_says("go")]
    shadow = 0.5 if at == "SHADOWING" else None
    agrees = Collected(shadowed={releases.firm.ref.digest: pairs(0, 100)})
    world.collected = [agrees] * 99 if shadow else []
    order = releases.firm.order(2, soak_s=1, deadline_s=900, shadow=shadow)
    world.updater.orders.offer(order)


def disturb(world: World, at: State, fault: Fault) -> str:
    """Run to the end, with a fault at the entry of a state; return the final state."""
    again: Callable[[], None] | None = None

    def strike(reached: str) -> None:
        nonlocal again
        if reached != at:
            return
        world.on_move = lambda _state: None
        if fault in ("kill", "power cut"):
            again = world.restart if fault == "kill" else world.power_cycle
            raise PowerCutError
        if fault == "full disk":
            world.faults.full_from, world.faults.full_for = world.faults.writes, 3
        elif fault == "wrong":
            world.board.image_version = "1.9"
        elif fault == "falls back":
            world.board.is_dead = True
            if TABLE[at].is_on_trial:
                again = world.power_cycle
                raise PowerCutError
        else:
            world.board.answers = {step: [SAID[fault]] for step in steps_of(at)}

    world.on_move = strike
    try:
        return world.settle()
    except PowerCutError:
        assert again is not None
        again()
    return world.settle()


@pytest.mark.parametrize("fault", get_args(Fault))
@pytest.mark.parametrize("state", WITH_FIRMWARE)
def test_model_and_firmware_are_both_new_or_both_old(
    world: World, releases: Releases, state: State, fault: Fault
) -> None:
    bring(world, releases, state)
    end = disturb(world, state, fault)
    assert state in world.seen
    assert end == ENDS[state][fault], world.journal.because
    check_both(world, releases, end)


def test_every_step_belongs_to_states_of_the_table_and_every_state_has_its_faults() -> None:
    assert set(STEPS) == set(get_args(FirmwareStep))
    for row in STEPS.values():
        assert row.states
        assert set(row.states) <= set(TABLE)
    assert set(ENDS) == set(WITH_FIRMWARE)


def test_release_with_firmware_walks_the_table_and_runs_the_steps_in_order(
    world: World, releases: Releases
) -> None:
    bring(world, releases)
    assert world.settle() == "COMMITTED"
    check_both(world, releases, BOTH)
    assert world.seen[3:7] == ["STAGED", "INSTALLING", "REBOOTING", "PROBING"]
    assert world.seen[-3:] == ["SOAKING", "CONFIRMING", "COMMITTED"]
    steps = ["running", "check", "install", "running", "reboot", "running", "running", "commit"]
    assert world.board.asked == steps
    assert world.hooks_run[4:6] == ["installing.before", "installing.after"]
    facts = world.board.facts["install"]
    assert (facts["firmware_version"], facts["firmware_previous"]) == ("2.0", "1.0")
    assert Path(facts["firmware_file"]).name == "camera-2.0.img"
    assert "firmware 2.0 is committed with it" in world.journal.because


def test_device_with_the_firmware_fetches_and_changes_no_firmware(
    world: World, releases: Releases
) -> None:
    world.board.slots[0] = "2.0"
    world.restart()
    bring(world, releases)
    assert world.settle() == "COMMITTED"
    assert world.board.asked == ["running"]
    assert not (world.state_dir / "slots" / releases.firm.ref.digest / FIRMWARE.file).exists()


@pytest.mark.parametrize("settings", [FirmwareConfig(), FirmwareConfig(installer="rauc")])
def test_device_of_another_kind_rejects_the_release(
    world: World, releases: Releases, settings: FirmwareConfig
) -> None:
    world.firmware = settings
    world.restart()
    bring(world, releases)
    assert world.settle() == "REJECTED"
    assert "the release requires firmware for sim" in world.journal.because


@pytest.mark.parametrize("hook", ["installing.before", "installing.after"])
def test_hooks_delay_or_prevent_the_installation(
    world: World, releases: Releases, hook: str
) -> None:
    world.hook_answers[hook] = [hook_says("retry"), hook_says("refuse", "the camera records")]
    bring(world, releases)
    assert world.settle() == NONE
    assert world.hooks_run.count(hook) == 2
    assert ("install" in world.board.asked) == (hook == "installing.after")
    assert "the camera records" in world.journal.because
    check_both(world, releases, NONE)


def test_firmware_that_cannot_go_back_is_reported_and_the_old_model_serves(
    world: World, releases: Releases
) -> None:
    world.hook_answers["activating.after"] = [REFUSES]
    world.board.answers = {"revert": [hook_says("refuse", "no older image")] * REVERT_TRIES}
    bring(world, releases)
    assert world.settle() == NONE
    assert world.board.version == "2.0"
    assert REFUSES.because in world.journal.because
    assert "firmware 2.0 stays: firmware revert: no older image" in world.journal.because
    assert world.pointer is not None
    assert world.pointer.bundle == releases.one.ref


def test_bootloader_that_ignores_the_way_back_ends_no_device_in_a_loop(
    world: World, releases: Releases
) -> None:
    world.hook_answers["activating.after"] = [REFUSES]
    world.board.ignores_revert = True
    bring(world, releases)
    boots = world.board.boots
    assert world.settle() == NONE
    assert world.board.boots - boots <= 1 + MAX_RETURNS
    assert f"firmware 2.0 stays: the device was restarted {MAX_RETURNS} times" in (
        world.journal.because
    )


def test_device_without_its_hook_reports_that_the_firmware_stays(
    world: World, releases: Releases
) -> None:
    def lose_hook(reached: str) -> None:
        if reached == "PROBING":
            world.firmware = FirmwareConfig()
            raise PowerCutError

    world.on_move = lose_hook
    bring(world, releases)
    with pytest.raises(PowerCutError):
        world.settle()
    world.on_move = lambda _state: None
    world.hook_answers["activating.after"] = [REFUSES]
    world.restart()
    assert world.settle() == NONE
    assert REFUSES.because in world.journal.because
    assert "firmware unknown stays: the device has no firmware hook" in world.journal.because
    assert world.journal.firmware is None


def test_device_that_does_not_restart_goes_back(world: World, releases: Releases) -> None:
    bring(world, releases)
    world.board.is_stuck = True
    assert world.settle() == NONE
    assert "did not restart within 60 s" in world.journal.because
    check_both(world, releases, NONE)


def test_boot_id_that_never_changes_ends_no_device_in_a_loop(
    world: World, releases: Releases
) -> None:
    world.board.boot_id = "the same"
    world.board.image_version = "2.5"
    bring(world, releases)
    boots = world.board.boots
    assert world.settle() == NONE
    assert world.board.boots - boots <= MAX_LEAVES + 1
    assert "firmware.boot_id_file has not changed" in world.journal.because
    check_both(world, releases, NONE)


def test_nothing_is_installed_where_no_restart_could_be_noticed(
    world: World, releases: Releases
) -> None:
    world.board.boot_id = ""
    bring(world, releases)
    assert world.settle() == NONE
    assert "firmware.boot_id_file cannot be read" in world.journal.because
    assert "install" not in world.board.asked
    check_both(world, releases, NONE)


@pytest.mark.parametrize("step", ["reboot", "commit", "revert"])
def test_hook_that_is_busy_for_ever_keeps_no_device_in_a_state(
    world: World, releases: Releases, step: str
) -> None:
    if step == "revert":
        world.hook_answers["activating.after"] = [REFUSES]
    world.board.answers = {step: [hook_says("retry", "the installer is busy")] * 100}
    bring(world, releases)
    assert world.settle(max_turns=10_000) == NONE
    assert f"firmware {step}: the installer is busy, for 1800 s" in world.journal.because
    assert len(world.board.answers[step]) > 80


def test_changed_firmware_reaches_the_watch_and_the_report(
    world: World, releases: Releases
) -> None:
    world.board.slots[0] = "1.1"
    world.power_cycle()
    world.settle()
    assert world.pointer is not None
    assert world.pointer.basis["firmware"] == "1.1"
    assert world.probed == {"cpu": 1}
    world.wrong, world.board.slots[0] = {"cpu"}, "1.2"
    world.power_cycle()
    world.settle()
    told = world.journal.watch.told
    assert (told.state, told.symptom) == ("DEGRADED", "basis")
    assert "firmware: 1.2 instead of 1.1" in told.because
    assert world.models.facts.firmware == "1.2"


def make_other(
    world: World,
    releases: Releases,
    tmp_path_factory: pytest.TempPathFactory,
    firmware: Mapping[Firmware, bytes] | None = None,
) -> ExampleBundle:
    """Make a release of another model, and let the depot hold it."""
    folder = tmp_path_factory.mktemp("other") / "other"
    other = make_bundle(
        folder, releases.key, name="other", variants=("cpu-vnni",), firmware=firmware
    )
    world.link.hold(other)
    return other


def test_other_model_that_fails_on_the_firmware_sends_both_back(
    world: World, releases: Releases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_other(world, releases, tmp_path_factory)
    world.models.take(other.desired(3))
    world.settle()

    def spoil(reached: str) -> None:
        if reached == "REBOOTING":
            world.wrong = {"cpu-vnni"}
        elif reached == "ROLLING_BACK":
            world.wrong = set()

    world.on_move = spoil
    bring(world, releases)
    assert world.settle() == NONE
    assert "model other is not proven on firmware 2.0" in world.journal.because
    assert world.board.version == "1.0"
    world.settle()
    served = {one.name: one.active and one.active.bundle.release for one in world.models}
    assert served == {"other": 1, "tiny": 1}


def test_release_that_names_firmware_waits_for_the_end_of_a_trial(
    world: World, releases: Releases, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = make_other(world, releases, tmp_path_factory, firmware={FIRMWARE: b"image 2.0" * 9999})

    def offer(reached: str) -> None:
        if reached == "PROBING":
            world.on_move = lambda _state: None
            world.models.take(other.desired(3))

    world.on_move = offer
    world.board.answers = {"commit": [hook_says("refuse", "no commit today")]}
    world.updater.orders.offer(releases.firm.order(2, soak_s=60))
    world.settle()
    waits = [(one.model, one.because) for one in world.events("wait")]
    assert waits == [("other", "waits until tiny ends its trial of the firmware")]
    assert "no commit today" in world.journal.because
    served = {one.name: one.active and one.active.bundle.release for one in world.models}
    assert served == {"other": 1, "tiny": 1}
    assert world.board.version == "2.0"
    assert world.board.is_settled


@pytest.mark.parametrize(
    ("name", "installer", "because"),
    [
        ("tiny", AGENT_RELEASE, "only a release named edgepack-agent"),
        (AGENT_RELEASE, "sim", "only a release named edgepack-agent"),
        (AGENT_RELEASE, AGENT_RELEASE, "without the launcher"),
    ],
)
def test_only_a_release_of_that_name_replaces_the_agent(
    world: World, releases: Releases, tmp_path: Path, name: str, installer: str, because: str
) -> None:
    firmware = Firmware(installer=installer, version="2.0", file="firmware/agent.tar")
    bundle = make_bundle(
        tmp_path / "made", releases.key, name=name, release=9, firmware={firmware: b"image 2.0"}
    )
    world.link.hold(bundle)
    world.models.take(bundle.desired(9))
    world.settle()
    journal = world.models[name].journal
    assert journal.state == "REJECTED"
    assert because in journal.because
    assert world.board.version == "1.0"


def test_release_asks_again_which_firmware_runs(world: World, releases: Releases) -> None:
    world.board.slots[0] = "2.0"
    world.restart()
    world.board.slots[0] = "1.0"
    bring(world, releases)
    assert world.settle() == BOTH
    check_both(world, releases, BOTH)


@pytest.mark.parametrize(("verdict", "end"), [("refuse", "REJECTED"), ("retry", BOTH)])
def test_hook_that_names_no_version_again_commits_no_release(
    world: World, releases: Releases, verdict: Literal["refuse", "retry"], end: str
) -> None:
    world.board.slots[0] = "2.0"
    world.restart()
    world.board.answers = {"running": [hook_says(verdict, "the disk is slow")]}
    bring(world, releases)
    assert world.settle() == end
    assert world.board.asked == ["running"] * (1 + (verdict == "retry"))
    if end == "REJECTED":
        assert "firmware running: the disk is slow" in world.journal.because


def test_power_cut_at_any_moment_leaves_both_new_or_both_old(
    tmp_path_factory: pytest.TempPathFactory, world: World, releases: Releases
) -> None:
    folder = tmp_path_factory.mktemp("cuts")
    template = shutil.copytree(world.state_dir, folder / "template")
    world.faults.moments = 0
    bring(world, releases)
    assert world.settle() == "COMMITTED"
    ends = set()
    for moment in range(world.faults.moments):
        tried = World(
            state_dir=shutil.copytree(template, folder / str(moment)),
            keys=(releases.public_key,),
        )
        tried.link.hold(releases.firm)
        tried.models.start()
        tried.faults.moments, tried.faults.cut_at = 0, moment
        while not tried.has_heard(2):
            try:
                bring(tried, releases)
            except PowerCutError:
                tried.power_cycle()
        end = tried.settle_through_power_cuts()
        ends.add(end)
        check_both(tried, releases, end)
    assert ends == {BOTH, NONE}


def test_agent_that_dies_again_and_again_on_the_way_back_gives_up(
    world: World, releases: Releases
) -> None:
    world.limits = LimitConfig(disk_reserve_bytes=0, max_restarts=3)
    world.hook_answers["activating.after"] = [REFUSES]
    world.restart()

    def die(reached: str) -> None:
        if reached == "REVERTING":
            raise PowerCutError

    world.on_move = die
    bring(world, releases)
    with pytest.raises(PowerCutError):
        world.settle()
    world.on_move = lambda _state: None
    for _ in range(4):
        world.restart()
    assert world.journal.state == NONE
    assert "restarted 4 times" in world.journal.because


def test_the_page_shows_the_contract() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "firmware.md"
    assert markdown() in page.read_text(), "run: python -m edgepack.agent.hooks.firmware"


def test_agent_starts_on_a_firmware_that_lacks_the_hook(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    firmware = FirmwareConfig(hook=str(tmp_path / "firmware"), installer="sim")
    trust = TrustConfig(keys=())
    hook = open_firmware(
        AgentConfig(device="cam-1", state_dir=str(tmp_path), trust=trust, firmware=firmware)
    )
    assert hook is not None
    assert hook.version == ""
    assert hook.run("revert", {}).verdict == "refuse"
    assert "hook firmware does not exist" in caplog.text
