"""The hook runner, with real executables."""

import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgepack.agent.hooks.runner import (
    OUTPUT_LIMIT_BYTES,
    HookVerdict,
    check_hook_folder,
    run_hooks,
    update_facts,
)
from edgepack.errors import DeviceError
from edgepack.halt import Halt, HaltedError
from edgepack.wire.orders import BundleRef
from tests.simulators.children import LONGER_AND_LONGER_S, has_ended

AddHook = Callable[[str, str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "hooks"
    (made / "staged.before.d").mkdir(parents=True)
    return made


@pytest.fixture
def add(folder: Path) -> AddHook:
    def add_hook(name: str, content: str) -> Path:
        hook = folder / "staged.before.d" / name
        hook.write_text(content)
        hook.chmod(0o755)
        return hook

    return add_hook


def run(folder: Path, facts: dict[str, str] | None = None, timeout_s: float = 30) -> HookVerdict:
    return run_hooks("staged", "before", [folder], facts or {}, timeout_s)


def run_what_never_ends(folder: Path) -> tuple[HookVerdict, float]:
    """Return the verdict on a hook ended after some output, and its time limit."""
    for timeout_s in LONGER_AND_LONGER_S:
        verdict = run(folder, timeout_s=timeout_s)
        if verdict.output:
            return verdict, timeout_s
    raise AssertionError("the hook did not begin")


def test_hooks_run_in_name_order_and_all_must_say_go(folder: Path, add: AddHook) -> None:
    add("20-second", "#!/bin/sh\necho second\n")
    add("10-first", "#!/bin/sh\necho first\n")
    verdict = run(folder)
    assert verdict.verdict == "go"
    assert verdict.output == "first\nsecond\n"
    assert verdict.because == "2 hooks said go"


def test_the_devices_hooks_run_before_those_of_the_bundle(tmp_path: Path) -> None:
    for owner in ("device", "bundle"):
        stage = tmp_path / owner / "activating.after.d"
        stage.mkdir(parents=True)
        (stage / "10-say").write_text(f"#!/bin/sh\necho {owner}\n")
        (stage / "10-say").chmod(0o755)
    verdict = run_hooks("activating", "after", [tmp_path / "device", tmp_path / "bundle"], {}, 30)
    assert verdict.output == "device\nbundle\n"


def test_no_hooks_means_go(folder: Path, tmp_path: Path) -> None:
    assert run(folder).because == "there are no hooks"
    assert run(tmp_path / "absent").verdict == "go"


def test_a_failing_hook_refuses_with_its_last_line_and_stops_the_rest(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    failing = add("10-fails", "#!/bin/sh\necho looking\necho 'driver 1.2 is too old' >&2\nexit 3\n")
    add("20-never", f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    verdict = run(folder)
    assert (verdict.verdict, verdict.exit_code) == ("refuse", 3)
    assert verdict.hook == str(failing)
    assert verdict.output == "looking\ndriver 1.2 is too old\n"
    assert verdict.because == "hook 10-fails refused with exit code 3: driver 1.2 is too old"
    assert not (tmp_path / "ran").exists()


def test_exit_code_21_asks_to_try_again_later(folder: Path, add: AddHook) -> None:
    add("10-busy", "#!/bin/sh\necho 91 degrees\nexit 21\n")
    verdict = run(folder)
    assert (verdict.verdict, verdict.exit_code) == ("retry", 21)
    assert verdict.because == "hook 10-busy asks to try again later: 91 degrees"


def test_a_hanging_hook_is_killed_at_its_time_limit(folder: Path, add: AddHook) -> None:
    add("10-hangs", "#!/bin/sh\necho starting\nexec sleep 60\n")
    verdict, timeout_s = run_what_never_ends(folder)
    assert verdict.verdict == "refuse"
    assert verdict.exit_code is None
    assert verdict.output == "starting\n"
    assert verdict.because.startswith(
        f"hook 10-hangs did not end within {timeout_s:g} s and was killed"
    )


def test_a_hook_that_ignores_sigterm_is_killed_all_the_same(folder: Path, add: AddHook) -> None:
    ignores = "trap '' TERM INT HUP\necho ignores them"
    add("10-stubborn", f"#!/bin/sh\n{ignores}\nwhile :; do sleep 1; done\n")
    verdict, _ = run_what_never_ends(folder)
    assert "was killed" in verdict.because


def halted(folder: Path, begun: Path, halt: Halt) -> None:
    """Run hooks that are halted once the first has begun."""

    def stop() -> None:
        while not begun.exists():
            time.sleep(0.01)
        halt.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        with pytest.raises(HaltedError):
            run_hooks("staged", "before", [folder], {}, 60, halt=halt)
    finally:
        begun.touch()
        stopper.join()


FLASHES = """#!{python} -S
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)  # What is begun is brought to its end.
    pathlib.Path({whole!r}).touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
pathlib.Path({begun!r}).touch()
time.sleep(600)
"""


@pytest.mark.parametrize("wrapped", ["", "#!/bin/sh\n{flash}\n"])
def test_a_hook_that_is_halted_may_bring_itself_into_order(
    folder: Path, add: AddHook, tmp_path: Path, wrapped: str
) -> None:
    begun, whole = tmp_path / "begun", tmp_path / "whole"
    flash = FLASHES.format(python=sys.executable, begun=str(begun), whole=str(whole))
    if wrapped:  # The shell ends at SIGTERM; what it runs gets its time all the same.
        tool = tmp_path / "flash"
        tool.write_text(flash)
        tool.chmod(0o755)
        flash = wrapped.format(flash=tool)
    add("10-flashes", flash)
    halted(folder, begun, Halt())
    assert whole.exists()


def test_a_hook_that_is_halted_and_ignores_sigterm_is_killed(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    begun, note = tmp_path / "begun", tmp_path / "pid"
    add("10-x", f"#!/bin/sh\ntrap '' TERM\necho $$ > {note}; touch {begun}\nexec sleep 600\n")
    halted(folder, begun, Halt())
    assert has_ended(int(note.read_text()))


def test_after_the_last_piece_the_hook_ends_by_itself_and_no_other_begins(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    begun, second = tmp_path / "begun", tmp_path / "second"
    add("10-first", f"#!/bin/sh\ntouch {begun}\nuntil [ -e {begun}2 ]; do sleep 0.01; done\n")
    add("20-second", f"#!/bin/sh\ntouch {second}\n")
    halt = Halt()

    def let_go() -> None:
        while not begun.exists():
            time.sleep(0.01)
        halt.after_this_piece()
        Path(f"{begun}2").touch()

    leaver = threading.Thread(target=let_go)
    leaver.start()
    with pytest.raises(HaltedError):
        run_hooks("staged", "before", [folder], {}, 60, halt=halt)
    leaver.join()
    assert not second.exists()


def test_a_flood_of_output_is_read_on_but_only_10_kib_are_kept(folder: Path, add: AddHook) -> None:
    flood_bytes = 100 * 1024 * 1024
    add(
        "10-floods",
        f"#!{sys.executable} -S\nimport os\nos.write(1, b'first\\n')\n"
        f"for _ in range({flood_bytes // 65536}): os.write(1, b'x' * 65536)\n"
        "os.write(2, b'\\nlast\\n')\nraise SystemExit(1)\n",
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    verdict = run(folder)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert verdict.exit_code == 1
    assert verdict.output.startswith("first\n")
    assert verdict.output.endswith("\nlast\n")
    assert len(verdict.output) < OUTPUT_LIMIT_BYTES + 60
    assert "104,847,372 bytes left out" in verdict.output
    assert grown_kib < 20 * 1024


def test_an_endless_flood_ends_at_the_time_limit(folder: Path, add: AddHook) -> None:
    add("10-yes", "#!/bin/sh\nexec yes\n")
    verdict, timeout_s = run_what_never_ends(folder)
    assert f"did not end within {timeout_s:g} s" in verdict.because
    assert len(verdict.output) < OUTPUT_LIMIT_BYTES + 60


def test_a_hook_that_dies_by_a_signal_refuses_and_the_signal_is_named(
    folder: Path, add: AddHook
) -> None:
    add("10-crashes", "#!/bin/sh\nkill -SEGV $$\n")
    verdict = run(folder)
    assert (verdict.verdict, verdict.exit_code) == ("refuse", None)
    assert verdict.because == "hook 10-crashes was ended by SIGSEGV"


def test_a_grandchild_neither_outlives_the_hook_nor_blocks_it(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    note = tmp_path / "grandchild"
    add("10-leaves", f"#!/bin/sh\nsleep 300 &\necho $! > {note}\necho done\n")
    verdict = run(folder)
    assert (verdict.verdict, verdict.output) == ("go", "done\n")
    assert has_ended(int(note.read_text()))


def test_a_grandchild_in_a_group_of_its_own_does_not_block_the_reader(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    note = tmp_path / "grandchild"
    daemon = f"setsid sh -c 'echo $$ > {note}; exec sleep 300' &"
    until_it_is_there = f"until [ -s {note} ]; do sleep 0.01; done"
    add("10-daemon", f"#!/bin/sh\n{daemon}\n{until_it_is_there}\n")
    assert run(folder).verdict == "go"
    os.kill(int(note.read_text()), signal.SIGKILL)  # fails where it did not live on


def test_facts_are_all_that_a_hook_knows(
    folder: Path, add: AddHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SECRET", "do not tell")
    add("10-env", "#!/bin/sh\nexec env\n")
    ref = BundleRef(name="ocr", version="1.2.0", release=7, digest="ab" * 32)
    facts = update_facts(device="cam-1", state_dir=Path("/var/lib/edgepack"), bundle=ref)
    told = dict(line.split("=", 1) for line in run(folder, facts).output.splitlines())
    assert told["EDGEPACK_STAGE"] == "staged"
    assert told["EDGEPACK_WHEN"] == "before"
    assert told["EDGEPACK_DEVICE"] == "cam-1"
    assert told["EDGEPACK_BUNDLE_NAME"] == "ocr"
    assert told["EDGEPACK_BUNDLE_RELEASE"] == "7"
    assert told["EDGEPACK_PYTHON"] == sys.executable
    others = {name for name in told if not name.startswith("EDGEPACK_")}
    assert others <= {"PATH", "LANG", "PWD", "SHLVL", "_", "OLDPWD"}


def test_control_sequences_in_output_do_not_reach_a_terminal(folder: Path, add: AddHook) -> None:
    add("10-paints", "#!/bin/sh\nprintf '\\033[2Jred'\n")
    assert run(folder).output == "\ufffd[2Jred"


@pytest.mark.parametrize(
    ("make", "because"),
    [
        (lambda hook: hook.write_text("#!/bin/sh\n"), "is not executable"),
        (lambda hook: hook.mkdir(), "is a folder or a device, not a file"),
        (lambda hook: hook.symlink_to("/no/such/file"), "is a link to nothing"),
    ],
)
def test_what_cannot_run_refuses_and_says_why(
    folder: Path, make: Callable[[Path], object], because: str
) -> None:
    make(folder / "staged.before.d" / "10-odd")
    verdict = run(folder)
    assert verdict.verdict == "refuse"
    assert because in verdict.because


@pytest.mark.parametrize("first_line", ["#!/no/such/interpreter", "#!/usr/bin/env no-such-program"])
def test_a_missing_interpreter_is_named(folder: Path, add: AddHook, first_line: str) -> None:
    add("10-old", f"{first_line}\n")
    interpreter = first_line.removeprefix("#!").split()[-1]
    assert run(folder).because == (
        f"hook 10-old names an interpreter that is not there: {interpreter}"
    )


def test_a_file_that_is_no_program_refuses(folder: Path, add: AddHook) -> None:
    add("10-text", "just text\n")
    verdict = run(folder)
    assert verdict.verdict == "refuse"
    assert "could not be started" in verdict.because


def test_a_misspelt_stage_folder_refuses_since_its_guard_would_never_run(folder: Path) -> None:
    (folder / "actived.after.d").mkdir()
    verdict = run(folder)
    assert verdict.verdict == "refuse"
    assert "'actived.after.d' names no stage" in verdict.because


Places = dict[str, Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Make hooks that are reached through links, and all files on the way to a hook."""
    above, store = tmp_path / "above", tmp_path / "store"
    stage = above / "hooks" / "staged.before.d"
    stage.mkdir(parents=True)
    (store / "inner").mkdir(parents=True)
    target = store / "inner" / "10-hook"
    target.write_text("#!/bin/sh\n")
    target.chmod(0o755)
    link = stage / "10-hook"
    link.symlink_to(target)
    return {
        "above": above,
        "folder": above / "hooks",
        "stage": stage,
        "link": link,
        "store": store,
        "inner": store / "inner",
        "target": target,
    }


def test_hooks_that_only_the_agents_user_can_change_run(places: Places) -> None:
    assert run(places["folder"]).because == "1 hook said go"
    check_hook_folder(places["folder"])


@pytest.mark.parametrize("who", ["every user", "group 64321"])
@pytest.mark.parametrize("place", ["above", "folder", "stage", "store", "inner", "target"])
def test_a_hook_that_others_can_replace_is_refused_with_the_path_that_lets_them(
    places: Places, place: str, who: str
) -> None:
    path = places[place]
    if who == "every user":
        path.chmod(path.stat().st_mode | 0o002)
    elif os.geteuid() == 0:
        os.chown(path, -1, 64321)
        path.chmod(path.stat().st_mode | 0o020)
    else:
        pytest.skip("only root gives files to a group that it is not in")
    verdict = run(places["folder"])
    assert verdict.verdict == "refuse"
    assert f"cannot be trusted: {path} can be written by {who}" in verdict.because
    with pytest.raises(DeviceError, match="cannot be trusted"):
        check_hook_folder(places["folder"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away; CI is root")
@pytest.mark.parametrize("place", ["above", "folder", "stage", "link", "store", "inner", "target"])
def test_a_hook_on_whose_way_something_belongs_to_another_user_is_refused(
    places: Places, place: str
) -> None:
    os.chown(places[place], 64321, -1, follow_symlinks=False)
    verdict = run(places["folder"])
    assert verdict.verdict == "refuse"
    assert f"cannot be trusted: {places[place]} belongs to user 64321" in verdict.because


def test_a_folder_like_tmp_on_the_way_is_no_danger_but_as_the_folder_of_hooks_it_is(
    places: Places,
) -> None:
    places["above"].chmod(0o1777)
    assert run(places["folder"]).verdict == "go"
    places["folder"].chmod(0o1777)
    assert run(places["folder"]).verdict == "refuse"


def test_links_in_a_circle_refuse(places: Places) -> None:
    places["target"].unlink()
    places["target"].symlink_to(places["link"])
    assert run(places["folder"]).verdict == "refuse"


def test_a_stage_that_does_not_exist_is_the_callers_mistake(folder: Path) -> None:
    with pytest.raises(ValueError, match="no hook stage started\\.before"):
        run_hooks("started", "before", [folder], {}, 1)


def test_the_device_folder_is_checked_before_an_update_needs_it(
    folder: Path, add: AddHook, tmp_path: Path
) -> None:
    check_hook_folder(folder)
    add("10-plain", "#!/bin/sh\n").chmod(0o644)
    with pytest.raises(DeviceError, match="a hook cannot run: it is not executable"):
        check_hook_folder(folder)
    with pytest.raises(DeviceError, match="the hook folder does not exist"):
        check_hook_folder(tmp_path / "absent")
