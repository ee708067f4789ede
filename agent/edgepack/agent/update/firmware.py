"""Firmware and model as a single release: the actions of INSTALLING, REBOOTING, CONFIRMING and
REVERTING.

The bundle has the artefact, so the agent fetches and verifies the artefact like any other file.
The firmware hook installs the artefact beside the running firmware. The new firmware runs on trial
until the model is proven there; then both are committed, or both go back. A release of the agent
itself takes the same way: its artefact is an environment of the agent, and only the agent restarts.
"""

import msgspec

from edgepack.agent.hooks.firmware import FirmwareStep
from edgepack.agent.update.context import (
    Ended,
    Step,
    UpdateContext,
    Wait,
)
from edgepack.agent.update.journal import FirmwarePlan
from edgepack.agent.update.lifecycle import TABLE
from edgepack.bundle.agent_release import AGENT_RELEASE, check_name, environment_kind
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
    check_name(manifest)
    firmware, found = context.installer, context.find_artefact(manifest)
    if firmware is None or found is None:
        kinds = ", ".join(one.kind for one in manifest.facts.firmware)
        kind = _kind_of_device(context)
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


def _kind_of_device(context: UpdateContext) -> str:
    if not context.is_of_agent:
        settings = context.deps.config.firmware
        return f"{settings.installer} {settings.compatible}".rstrip() or "without firmware hook"
    if context.installer is None:
        return "without the launcher of the package, which starts releases of the agent"
    return f"{AGENT_RELEASE} {environment_kind()}"


def _wait_for_others(context: UpdateContext) -> Wait | None:
    """Return the wait for the end of another update's firmware trial; None without a trial."""
    name = context.model.others.changes_firmware()
    if not name:
        return None
    noun = "agent" if name == AGENT_RELEASE else "firmware"
    return Wait(seconds=BUSY_S, because=f"waits until {name} ends its trial of the {noun}")


def why_off_trial(context: UpdateContext) -> str:
    """Return why the firmware of the update is not on trial any more; "" if all is well."""
    plan, firmware = context.journal.firmware, context.installer
    running = firmware.version if firmware else ""
    if firmware is None or plan is None or not running or running == plan.version:
        return ""
    return (
        f"{firmware.noun} {running} runs instead of {plan.version}: the {firmware.starter} fell "
        "back before the commit"
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
        because = f"{_noun(context)} {running} runs already"
        if plan.previous:
            return Ended(outcome="success", because=because)
        return Ended(outcome="already", because=because, changes={"firmware": None})
    if not running:
        because = f"the version of the running {_noun(context)} is not known"
        return Ended(outcome="failure", because=because)
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
        because=f"{_noun(context)} {plan.version} is installed beside {running}, for a restart",
    )


def restart_device(context: UpdateContext) -> Step:
    """Restart the device, and compare the firmware that runs afterwards."""
    plan = _plan(context)
    if held_up := _run_once(context, "running"):
        return held_up
    running = _running(context)
    if running == plan.version:
        return Ended(outcome="success", because=f"{_noun(context)} {running} runs, on trial")
    if _boot(context) != plan.boot:
        starter = context.installer.starter if context.installer else "bootloader"
        because = (
            f"{_noun(context)} {running or 'unknown'} runs after the restart instead of "
            f"{plan.version}: the {starter} fell back, or the artefact is of another version"
        )
        return Ended(outcome="failure", because=because)
    if not context.scratch.is_restarting:
        if plan.leaves >= MAX_LEAVES:
            because = (
                f"{_noun(context)} {running or 'unknown'} runs instead of {plan.version}: the "
                f"restart was asked for {plan.leaves} times, and firmware.boot_id_file has not "
                "changed"
            )
            return Ended(outcome="failure", because=because)
        context.model.store.update(firmware=msgspec.structs.replace(plan, leaves=plan.leaves + 1))
        context.scratch.is_restarting = True
    return _reboot(context)


def confirm_firmware(context: UpdateContext) -> Step:
    """End the trial, once every other model of the device is proven on the firmware, too."""
    plan, scratch, noun = _plan(context), context.scratch, _noun(context)
    if held_up := _run_once(context, "running"):
        return held_up
    running = _running(context)
    if running != plan.version:
        because = f"{noun} {running or 'unknown'} runs instead of {plan.version}"
        return Ended(outcome="failure", because=because)
    scratch.until = scratch.until or context.now() + context.deps.config.firmware.reboot_s
    basis = context.installer.basis if context.installer else noun
    unproven = context.model.others.unproven_on(basis, running, context.journal.taken_at)
    for name, because in unproven.items():
        if because or context.now() >= scratch.until:
            because = f"model {name} is not proven on {noun} {running}: {because or 'no probe'}"
            return Ended(outcome="failure", because=because)
    if unproven:
        names = ", ".join(unproven)
        return Wait(seconds=BUSY_S, because=f"waits until {names} is proven on {noun} {running}")
    if held_up := _run_once(context, "commit"):
        return held_up
    because = f"{context.journal.because}; {noun} {running} is committed with it"
    return Ended(outcome="success", because=because)


def revert_firmware(context: UpdateContext) -> Step:
    """Start the previous firmware again; a failure is reported, and the old model serves anyway."""
    plan, scratch = _plan(context), context.scratch
    if context.installer is None:
        gone = "launcher" if context.is_of_agent else "firmware hook"
        return _give_up(context, f"the device has no {gone} any more")
    for step in ("revert", "running"):
        if held_up := _run_once(context, step, tries=REVERT_TRIES):
            return held_up if isinstance(held_up, Wait) else _give_up(context, held_up.because)
    if _running(context) == plan.previous:
        because = f"{context.journal.because}; {_noun(context)} {plan.previous} runs again"
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
    because = f"{context.journal.because}; {_noun(context)} {running} stays: {because}"
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
        restarting = "agent" if context.is_of_agent else "device"
        because = f"the {restarting} did not restart within {limit_s:g} s"
        return Ended(outcome="failure", because=because)
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
    because = f"{_noun(context)} {step}: {verdict.because}"
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


def _noun(context: UpdateContext) -> str:
    return "agent" if context.is_of_agent else "firmware"


def _running(context: UpdateContext) -> str:
    firmware = context.installer
    return firmware.version if firmware else ""


def _boot(context: UpdateContext) -> str:
    firmware = context.installer
    return firmware.read_boot() if firmware else ""
