"""The firmware hook: the single program through which the agent changes the device's firmware.

The hook stands for an installer (RAUC, SWUpdate, Mender, fwupd …) with its bootloader. The agent
calls the hook with a step of `STEPS`; the life cycle decides the order of the steps.

    python -m edgepack.agent.hooks.firmware        # the contract as a table, for the docs
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec

from edgepack.agent.hooks.runner import HookVerdict, hook_environment, run_hook
from edgepack.halt import NEVER, Halt

FirmwareStep = Literal["running", "check", "install", "reboot", "commit", "revert"]
SHORT_S = 30.0
"""Time limit of the steps that write no image."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a step in the contract of firmware hooks.

    Attributes:
        duty: Work of the hook.
        killed: State that the hook must leave if the hook is killed at any instant.
        states: States of the life cycle that run the step.
        is_long: Whether `firmware.timeout_s` is the time limit, instead of `SHORT_S`.
    """

    duty: str
    killed: str
    states: tuple[str, ...]
    is_long: bool = False


STEPS: dict[FirmwareStep, StepRow] = {
    "running": StepRow(
        duty="print the version of the running firmware as the last line",
        killed="nothing has changed",
        states=("OFFERED", "INSTALLING", "REBOOTING", "CONFIRMING", "REVERTING"),
    ),
    "check": StepRow(
        duty="verify the artefact's signature and kind of board; require a way back; write nothing",
        killed="nothing has changed",
        states=("INSTALLING",),
        is_long=True,
    ),
    "install": StepRow(
        duty="write the artefact beside the running firmware; start it next time, on trial",
        killed="the running firmware starts next time, or the whole new firmware on trial",
        states=("INSTALLING",),
        is_long=True,
    ),
    "reboot": StepRow(
        duty="restart the device, or return at once and let it restart",
        killed="the device restarts or does not",
        states=("REBOOTING", "REVERTING"),
    ),
    "commit": StepRow(
        duty="end the trial: the running firmware starts from now on",
        killed="the firmware is on trial, or is committed",
        states=("CONFIRMING",),
    ),
    "revert": StepRow(
        duty="start the previous firmware next time, also after a `commit`",
        killed="either firmware starts next time; the next `revert` begins anew",
        states=("REVERTING",),
        is_long=True,
    ),
}


class FirmwareHook:
    """Runs the device's firmware hook.

    Args:
        hook: The executable.
        timeout_s: Time limit of the long steps.
        boot_id_file: File whose content differs after each start of the device.

    Attributes:
        version: Version of the running firmware, as last printed; "" while unknown.
    """

    noun, starter, basis = "firmware", "bootloader", "firmware"

    def __init__(self, hook: Path, *, timeout_s: float, boot_id_file: Path) -> None:
        self._hook = hook
        self._timeout_s = timeout_s
        self._boot_id_file = boot_id_file
        self.version = ""

    def run(self, step: FirmwareStep, facts: Mapping[str, str], halt: Halt = NEVER) -> HookVerdict:
        """Run a step of the contract.

        Args:
            step: The step.
            facts: Facts for the hook, as for other hooks.
            halt: Ends the hook.

        Returns:
            The verdict; of `running`, its last line is the version in `version`.

        Raises:
            HaltedError: Because of `halt`.
        """
        limit_s = self._timeout_s if STEPS[step].is_long else min(SHORT_S, self._timeout_s)
        environment = hook_environment({"step": step, **facts})
        verdict = run_hook(self._hook, environment, limit_s, halt)
        if step == "running" and verdict.verdict == "go":
            self.version = parse_version(verdict.output)
        return verdict

    def read_boot(self) -> str:
        """Return the identity of this start of the device; "" if unreadable."""
        try:
            return self._boot_id_file.read_text(errors="replace").strip()[:100]
        except OSError:
            return ""


def parse_version(output: str) -> str:
    """Return the version that the step `running` printed; "" without output."""
    return output.strip().rpartition("\n")[2].strip()[:100]


def markdown() -> str:
    """Return the contract as a Markdown table."""
    lines = [
        "| `EDGEPACK_STEP` | duty | after a kill at any instant | time limit | called in |",
        "| --- | --- | --- | --- | --- |",
    ]
    for step in get_args(FirmwareStep):
        row = STEPS[step]
        limit = "`firmware.timeout_s`" if row.is_long else f"{SHORT_S:g} s"
        states = ", ".join(f"`{state}`" for state in row.states)
        lines.append(f"| `{step}` | {row.duty} | {row.killed} | {limit} | {states} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
