"""Firmware and model as a single release: the actions of INSTALLING, REBOOTING, CONFIRMING and
REVERTING.

The bundle has the artefact, so the agent fetches and verifies the artefact like any other file.
The firmware hook installs the artefact beside the running firmware. The new firmware runs on trial
until the model is proven there; then both are committed, or both go back.
"""

import msgspec

from edgepack.agent.hooks.firmware import FirmwareStep
from edgepack.agent.update.context import (
    Ended,
    Step,
    UpdateContext,
    Wait,
    find_firmware,
)
from edgepack.agent.update.journal import FirmwarePlan
from edgepack.agent.update.lifecycle import TABLE
from edgepack.bundle.manifest import Manifest
from edgepack.errors import DeviceError

BUSY_S = 1.0
"""Seconds between looks at the update of another model that has changed the firmware."""
MAX_RETURNS = 2
"""Restarts towards the previous firmware, before the device reports that the firmware stays."""
MAX_LEAVES = 10
"""Restarts towards the new firmware that leave no trace in the boot id, before both go back."""
REVERT_TRIES = 3
"""Failed steps on the way back, before the device reports likewise."""


def plan_firmware(context: UpdateContext, manifest: Manifest) -> FirmwarePlan | Wait | None:
    """Return the change of the firmware that a release requires here; None if there is none.

    A firmware on trial may go back, so a release that names firmware waits for its end. Others may
    have changed the firmware since the agent's start, so the hook names the version again.

    Raises:
        DeviceError: The release requires a firmware that this device cannot install.
        NotYetError: The hook has not named the version.
    """
    if not manifest.facts.firmware:
        return None
    settings, firmware = context.deps.config.firmware, context.deps.tools.firmware
    found = find_firmware(manifest, settings)
    if firmware is None or found is None:
        kinds = ", ".join(one.kind for one in manifest.facts.firmware)
        kind = f"{settings.installer} {settings.compatible}".rstrip() or "without firmware hook"
        raise DeviceError(f"the release requires firmware for {kinds}; this device is {kind}")
    if wait := _wait_for_others(context):
        return wait
    if firmware.version == found.version and (held_up := _run_once(context, "running")):
        if isinstance(held_up, Wait):
            return held_up
        raise DeviceError(held_up.because)
    if firmware.version == found.version:
        return None
    return FirmwarePlan(version=found.version, file=found.file)


def _wait_for_others(context: UpdateContext) -> Wait | None:
    """Return the wait for the end of another update's firmware trial; None without a trial."""
    name = context.model.others.changes_firmware()
    if not name:
        return None
    return Wait(seconds=BUSY_S, because=f"waits until {name} ends its trial of the firmware")


def why_off_trial(context: UpdateContext) -> str:
    """Return why the firmware of the update is not on trial any more; "" if all is well."""
    plan, firmware = context.journal.firmware, context.deps.tools.firmware
    running = firmware.version if firmware else ""
    if plan is None or not running or running == plan.version:
        return ""
    return (
        f"firmware {running} runs instead of {plan.version}: the bootloader fell back before the "
        "commit"
    )


def install_firmware(context: UpdateContext) -> Step:
    """Install the firmware beside the running firmware.

    1. No other update may have changed the firmware.
    2. After a power cut, the new firmware may run already: a second installation would overwrite
      the way back.
    3. The hooks allow the installation, and the installer accepts the artefact.
    4. The journal notes the running firmware before the first byte is written.
    """
    plan = _plan(context)
    if wait := _wait_for_others(context):  # 1
        return wait
    if held_up := _run_once(context, "running"):
        return held_up
    running = _running(context)
    if running == plan.version:  # 2
        because = f"firmware {running} runs already"
        if plan.previous:
            return Ended(outcome="success", because=because)
        return Ended(outcome="already", because=because, changes={"firmware": None})
    if not running:
        return Ended(outcome="failure", because="the version of the running firmware is not known")
    if not (boot := _boot(context)):
        because = "no restart could be noticed: firmware.boot_id_file cannot be read, or is empty"
        return Ended(outcome="failure", because=because)
    if held_up := context.run_hooks("installing", "before") or _run_once(context, "check"):  # 3
        return held_up
    plan = msgspec.structs.replace(plan, previous=running, boot=boot)
    if context.journal.firmware != plan:  # 4
        context.model.store.update(firmware=plan)
    if held_up := _run_once(context, "install") or context.run_hooks("installing", "after"):
        return held_up
    return Ended(
        outcome="success",
        because=f"firmware {plan.version} is installed beside {running}; the device restarts",
    )


def restart_device(context: UpdateContext) -> Step:
    """Restart the device, and compare the firmware that runs afterwards."""
    plan = _plan(context)
    if held_up := _run_once(context, "running"):
        return held_up
    running = _running(context)
    if running == plan.version:
        return Ended(outcome="success", because=f"firmware {running} runs, on trial")
    if _boot(context) != plan.boot:
        because = (
            f"firmware {running or 'unknown'} runs after the restart instead of {plan.version}: "
            "the bootloader fell back, or the artefact is of another version"
        )
        return Ended(outcome="failure", because=because)
    if not context.scratch.is_restarting:
        if plan.leaves >= MAX_LEAVES:
            because = (
                f"firmware {running or 'unknown'} runs instead of {plan.version}: the restart was "
                f"asked for {plan.leaves} times, and firmware.boot_id_file has not changed"
            )
            return Ended(outcome="failure", because=because)
        context.model.store.update(firmware=msgspec.structs.replace(plan, leaves=plan.leaves + 1))
        context.scratch.is_restarting = True
    return _reboot(context)


def confirm_firmware(context: UpdateContext) -> Step:
    """End the trial, once every other model of the device is proven on the firmware, too."""
    plan, scratch = _plan(context), context.scratch
    if held_up := _run_once(context, "running"):
        return held_up
    running = _running(context)
    if running != plan.version:
        because = f"firmware {running or 'unknown'} runs instead of {plan.version}"
        return Ended(outcome="failure", because=because)
    scratch.until = scratch.until or context.now() + context.deps.config.firmware.reboot_s
    unproven = context.model.others.unproven_on(running, context.journal.taken_at)
    for name, because in unproven.items():
        if because or context.now() >= scratch.until:
            because = f"model {name} is not proven on firmware {running}: {because or 'no probe'}"
            return Ended(outcome="failure", because=because)
    if unproven:
        names = ", ".join(unproven)
        return Wait(seconds=BUSY_S, because=f"waits until {names} is proven on firmware {running}")
    if held_up := _run_once(context, "commit"):
        return held_up
    because = f"{context.journal.because}; firmware {running} is committed with it"
    return Ended(outcome="success", because=because)


def revert_firmware(context: UpdateContext) -> Step:
    """Start the previous firmware again; a failure is reported, and the old model serves anyway."""
    plan, scratch = _plan(context), context.scratch
    if context.deps.tools.firmware is None:
        return _give_up(context, "the device has no firmware hook any more")
    for step in ("revert", "running"):
        if held_up := _run_once(context, step, tries=REVERT_TRIES):
            return held_up if isinstance(held_up, Wait) else _give_up(context, held_up.because)
    if _running(context) == plan.previous:
        because = f"{context.journal.because}; firmware {plan.previous} runs again"
        return Ended(outcome="success", because=because, changes={"firmware": None})
    if not scratch.is_restarting:
        if plan.returns >= MAX_RETURNS:
            return _give_up(context, f"the device was restarted {plan.returns} times")
        plan = msgspec.structs.replace(plan, boot=_boot(context), returns=plan.returns + 1)
        context.model.store.update(firmware=plan)
        scratch.is_restarting = True
    held_up = _reboot(context, tries=REVERT_TRIES)
    return held_up if isinstance(held_up, Wait) else _give_up(context, held_up.because)


def _give_up(context: UpdateContext, because: str) -> Ended:
    """Report that the firmware stays; the watch proves the old model on the firmware."""
    running = _running(context) or "unknown"
    because = f"{context.journal.because}; firmware {running} stays: {because}"
    context.note("hook", because)
    return Ended(outcome="failure", because=because, changes={"firmware": None})


def _reboot(context: UpdateContext, *, tries: int = 1) -> Step:
    """Request the restart once, and wait for the end of this process."""
    scratch = context.scratch
    if held_up := _run_once(context, "reboot", tries=tries):
        return held_up
    limit_s = context.deps.config.firmware.reboot_s
    scratch.until = scratch.until or context.now() + limit_s
    if context.now() >= scratch.until:
        return Ended(outcome="failure", because=f"the device did not restart within {limit_s:g} s")
    return Wait(seconds=scratch.until - context.now())


def _run_once(context: UpdateContext, step: FirmwareStep, *, tries: int = 1) -> Ended | Wait | None:
    """Run a step of the firmware hook once in a state; return None if the hook did the step."""
    scratch = context.scratch
    if step in scratch.steps_done:
        return None
    if context.now() < scratch.retry_at:
        return Wait(seconds=scratch.retry_at - context.now())
    verdict = context.run_firmware(step)
    if verdict.verdict == "go":
        scratch.steps_done.add(step)
        scratch.failures = 0
        return None
    scratch.failures += verdict.verdict == "refuse"
    limit_s = context.deps.config.firmware.timeout_s
    scratch.patient_until = scratch.patient_until or context.now() + limit_s
    is_patient = TABLE[context.journal.state].newer or context.now() < scratch.patient_until
    because = f"firmware {step}: {verdict.because}"
    if verdict.verdict == "retry" and not is_patient:
        return Ended(outcome="failure", because=f"{because}, for {limit_s:g} s")
    if scratch.failures < tries:
        return context.retry_later()
    return Ended(outcome="failure", because=because)


def _plan(context: UpdateContext) -> FirmwarePlan:
    plan = context.journal.firmware
    if plan is None:
        raise DeviceError(f"the journal is in {context.journal.state} without a firmware")
    return plan


def _running(context: UpdateContext) -> str:
    firmware = context.deps.tools.firmware
    return firmware.version if firmware else ""


def _boot(context: UpdateContext) -> str:
    firmware = context.deps.tools.firmware
    return firmware.read_boot() if firmware else ""
