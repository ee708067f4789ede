"""Firmware hooks: executables that say go, retry or refuse at named stages of an update.

A hook lies in `<folder>/<stage>.<before|after>.d/`. A hook is a guest in the agent's house: a hook
gets a clean environment, a time limit, a process group that is killed at the end, and 10 KiB for
its output.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from edgepack.agent.hooks.files import HOOK_PATH, find_hooks, why_not_runnable
from edgepack.agent.hooks.process import EndedHook, run_process
from edgepack.agent.hooks.users import HookUser
from edgepack.errors import DeviceError
from edgepack.halt import NEVER, Halt
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Choice

log = logging.getLogger(__name__)

Stage = Literal["offered", "staged", "installing", "activating", "committed", "rolled_back"]
When = Literal["before", "after"]
STAGES: tuple[Stage, ...] = get_args(Stage)
WHENS: tuple[When, ...] = get_args(When)

RETRY_CODE = 21
"""A hook's exit code for "try again later"; the number is that of Mender's state scripts."""
OUTPUT_LIMIT_BYTES = 10 * 1024
_NO_USERS: Mapping[Path, HookUser] = MappingProxyType({})
_FACT_NAME = re.compile(r"[a-z][a-z0-9_]*")


class HookVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of all hooks of a stage.

    Attributes:
        verdict: The first hook that does not say go decides.
        hook: The path of that hook; "" when all said go.
        exit_code: The exit code; None if the hook did not run, was killed or ran out of time.
        output: stdout and stderr, cut at 10 KiB; of all hooks if all said go.
        because: The reason in a sentence.
    """

    verdict: Literal["go", "retry", "refuse"]
    hook: str
    exit_code: int | None
    output: str
    because: str


def run_hooks(
    stage: str,
    when: str,
    folders: Sequence[Path],
    facts: Mapping[str, str],
    timeout_s: float,
    *,
    halt: Halt = NEVER,
    users: Mapping[Path, HookUser] = _NO_USERS,
) -> HookVerdict:
    """Run the hooks of a stage, folder by folder and in name order, until a hook does not say go.

    Args:
        stage: Stage, from `STAGES`.
        when: "before" or "after".
        folders: Hook folders: the device's own, then the bundle's; a missing folder has no hooks.
        facts: Facts for hooks; `{"bundle_name": "ocr"}` becomes `EDGEPACK_BUNDLE_NAME=ocr`.
        timeout_s: Time limit of each hook.
        halt: Ends the running hook, or lets the hook end by itself; starts no other hook.
        users: User of a folder's hooks, if other than this process's user.

    Returns:
        The verdict. A faulty hook or folder is a refusal with the reason, since a guard that cannot
        run must not be passed.

    Raises:
        ValueError: `stage`, `when` or the name of a fact is none.
        HaltedError: Because of `halt`.
    """
    if stage not in STAGES or when not in WHENS:
        raise ValueError(f"no hook stage {stage}.{when}; stages: {', '.join(STAGES)}")
    environment = hook_environment({"stage": stage, "when": when, **facts})
    outputs: list[str] = []
    for folder in folders:
        try:
            hooks = find_hooks(folder, f"{stage}.{when}.d", known_names=_folder_names())
        except DeviceError as error:
            return _refusal(str(error.found_in), error.problem)
        for hook in hooks:
            halt.check_between()
            verdict = run_hook(hook, environment, timeout_s, halt, users.get(folder))
            log.info("hook=%s verdict=%s because=%s", hook, verdict.verdict, verdict.because)
            if verdict.verdict != "go":
                return verdict
            outputs.append(verdict.output)
    told = "".join(outputs).encode()[:OUTPUT_LIMIT_BYTES].decode(errors="ignore")
    count = len(outputs)
    because = f"{count} hook{'s' * (count != 1)} said go" if count else "there are no hooks"
    return HookVerdict(verdict="go", hook="", exit_code=0, output=told, because=because)


def update_facts(
    *,
    device: str,
    state_dir: Path,
    bundle: BundleRef,
    bundle_folder: Path | None = None,
    choice: Choice | None = None,
    because: str = "",
) -> dict[str, str]:
    """Return the facts of an update for hooks; docs/reference/hooks.md lists the facts.

    Args:
        device: Device id.
        state_dir: The agent's state folder.
        bundle: The bundle that the update is about.
        bundle_folder: The bundle's slot, if present.
        choice: The chosen variant, if decided.
        because: Why the life cycle is here.
    """
    return {
        "device": device,
        "state_dir": str(state_dir),
        "bundle_name": bundle.name,
        "bundle_version": bundle.version,
        "bundle_release": str(bundle.release),
        "bundle_digest": bundle.digest,
        "bundle_folder": str(bundle_folder) if bundle_folder else "",
        "variant": choice.chosen if choice else "",
        "provider": choice.provider if choice else "",
        "because": because,
    }


def check_hook_folder(folder: Path) -> None:
    """Check a device's hook folder before the first update needs it.

    Raises:
        DeviceError: The folder is missing, holds a stage that does not exist, or a hook that cannot
            run.
    """
    if not folder.is_dir():
        raise DeviceError(
            "the hook folder does not exist",
            found_in=str(folder),
            remedy="make it, or leave hooks.folder out of the agent's settings",
        )
    for name in _folder_names():
        for hook in find_hooks(folder, name, known_names=_folder_names()):
            if problem := why_not_runnable(hook):
                raise DeviceError(f"a hook cannot run: it {problem}", found_in=str(hook))


def _folder_names() -> frozenset[str]:
    return frozenset(f"{stage}.{when}.d" for stage in STAGES for when in WHENS)


def hook_environment(facts: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a hook.

    Raises:
        ValueError: The name of a fact is none.
    """
    environment = {
        "PATH": HOOK_PATH,
        "LANG": "C.UTF-8",
        "EDGEPACK_PYTHON": sys.executable,
    }
    for name, value in facts.items():
        if not _FACT_NAME.fullmatch(name):
            raise ValueError(f"a hook fact's name is lower case letters, digits and _: {name!r}")
        environment[f"EDGEPACK_{name.upper()}"] = value.replace("\0", "")
    return environment


def run_hook(
    hook: Path,
    environment: dict[str, str],
    timeout_s: float,
    halt: Halt = NEVER,
    user: HookUser | None = None,
) -> HookVerdict:
    """Run a hook and return its verdict; a faulty hook is a refusal with the reason.

    Raises:
        HaltedError: Because of `halt`.
    """
    if user is not None:
        environment = {**environment, "USER": user.name, "LOGNAME": user.name, "HOME": user.home}
    if problem := why_not_runnable(hook):
        return _refusal(str(hook), f"hook {hook.name} {problem}")
    try:
        ended = run_process(
            hook,
            environment,
            timeout_s=timeout_s,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
            halt=halt,
            user=user,
        )
    except PermissionError as error:
        who = f"user {user.name}" if user else "the agent's user"
        because = f"hook {hook.name} could not be started: {who} may not read it: {error.strerror}"
        return _refusal(str(hook), because)
    except OSError as error:
        return _refusal(str(hook), f"hook {hook.name} could not be started: {error}")
    return _judge(hook, ended, timeout_s)


def _judge(hook: Path, ended: EndedHook, timeout_s: float) -> HookVerdict:
    verdict: Literal["go", "retry", "refuse"] = "refuse"
    if ended.timed_out:
        because = f"hook {hook.name} did not end within {timeout_s:g} s and was killed"
    elif ended.signal_name:
        because = f"hook {hook.name} was ended by {ended.signal_name}"
    elif ended.exit_code == 0:
        verdict, because = "go", f"hook {hook.name} said go"
    elif ended.exit_code == RETRY_CODE:
        verdict, because = "retry", f"hook {hook.name} asks to try again later"
    else:
        because = f"hook {hook.name} refused with exit code {ended.exit_code}"
    last_line = ended.output.strip().rpartition("\n")[2][:200]
    if verdict != "go" and last_line:
        because = f"{because}: {last_line}"
    return HookVerdict(
        verdict=verdict,
        hook=str(hook),
        exit_code=ended.exit_code,
        output=ended.output,
        because=because,
    )


def _refusal(hook: str, because: str) -> HookVerdict:
    return HookVerdict(verdict="refuse", hook=hook, exit_code=None, output="", because=because)
