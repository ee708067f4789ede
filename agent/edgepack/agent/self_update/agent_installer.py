"""Installer of the agent itself: the steps of the contract of firmware hooks, on the agent's slots.

The new agent proves itself twice: as a child before the switch, and on trial after the switch. The
launcher goes back by itself if the new agent does not start.
"""

import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from edgepack.agent.hooks.firmware import FirmwareStep
from edgepack.agent.hooks.runner import HookVerdict
from edgepack.agent.runtime.child import run_child
from edgepack.agent.self_update.agent_slots import AgentSlots
from edgepack.durable import is_full
from edgepack.errors import EdgepackError
from edgepack.halt import NEVER, Halt
from edgepack.python_child import foreign_python_command

log = logging.getLogger(__name__)

PROOF_MODULE = "edgepack.agent.cli.proof"
"""Module of the new agent that proves it: settings, folder of the bundle, `connect` if asked. Older
agents run the module, so its arguments stay."""
PROOF_S = 300.0


class AgentInstaller:
    """Installs releases of the agent.

    Args:
        slots: The slots.
        config_path: Settings that the new agent must accept.
        is_connected: Whether this process is connected to the broker; None for a command, whose
            update needs no broker.
        restart: Ends this process, which a service manager starts again by the launcher.

    Attributes:
        version: Version of the agent in service.
        trouble: Reason why the launcher did not start the committed agent; "" if it did.
    """

    noun, starter, basis = "agent", "launcher", "edgepack"

    def __init__(
        self,
        slots: AgentSlots,
        config_path: Path,
        *,
        is_connected: Callable[[], bool] | None,
        restart: Callable[[], None],
    ) -> None:
        self._slots, self._config_path = slots, config_path
        self._is_connected, self._restart = is_connected, restart
        self._boot = secrets.token_hex(8)
        is_command = is_connected is None
        self.trouble = "" if is_command else slots.trouble
        self.version = slots.active_version() if is_command else slots.running_version()

    def read_boot(self) -> str:
        """Return the identity of this start of the agent."""
        return self._boot

    def run(self, step: FirmwareStep, facts: Mapping[str, str], halt: Halt = NEVER) -> HookVerdict:
        """Run a step of the contract.

        Args:
            step: The step.
            facts: Facts of the update, as for firmware hooks.
            halt: Ends the step early.

        Raises:
            OSError: The disk does not work.
            HaltedError: Because of `halt`.
        """
        try:
            match step:
                case "install":
                    return self._install(facts, halt)
                case "reboot":
                    self._restart()
                case "commit":
                    is_alone = self._is_connected is not None and not self._is_connected()
                    if is_alone and self._slots.needs_broker:
                        return _verdict("retry", "the new agent is not connected to the broker")
                    self._slots.commit()
                case "revert":
                    self._slots.revert(facts["firmware_version"])
                case "check" | "running":
                    pass
        except EdgepackError as error:
            return _verdict("refuse", f"{error.problem} ({error.found_in})")
        return _verdict("go", self.version)

    def _install(self, facts: Mapping[str, str], halt: Halt) -> HookVerdict:
        """Fill the other slot, prove its agent as a child, and put the slot on trial."""
        version = facts["firmware_version"]
        try:
            slot = self._slots.install(Path(facts["firmware_file"]), version, halt)
        except OSError as error:
            if not is_full(error):
                raise
            return _verdict("refuse", "there is no room for another environment of the agent")
        connects = self._is_connected is not None and self._is_connected()
        words = (PROOF_MODULE, str(self._config_path), facts["bundle_folder"])
        command = foreign_python_command(
            str(slot / "bin/python"), "-B", "-m", *words, *(("connect",) if connects else ())
        )
        ending = run_child(command, b"", timeout_s=PROOF_S, halt=halt)
        if ending.answer is None:
            return _verdict("refuse", f"the new agent does not prove itself: {ending.because}")
        log.info("agent=%s proof=%s", version, ending.answer.decode(errors="replace")[:300])
        self._slots.begin_trial(slot.name, needs_broker=connects)
        return _verdict("go", version)


def _verdict(verdict: str, text: str) -> HookVerdict:
    return HookVerdict(
        verdict=verdict,  # type: ignore[arg-type]
        hook="",
        exit_code=None,
        output=text,
        because=text,
    )
