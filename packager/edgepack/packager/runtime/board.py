"""A board that proves variants: another machine, where the agent's probe runs over ssh."""

from dataclasses import dataclass

from edgepack.errors import DeviceError
from edgepack.packager.runtime.provider_process import TrialProcess
from edgepack.wire.reports import DeviceFacts


class BoardError(DeviceError):
    """A board cannot do its part; says nothing about a model."""


class BoardLostError(BoardError):
    """A board does not answer any longer, though the build tried again."""


@dataclass(frozen=True)
class Board:
    """A board that answered.

    Attributes:
        name: Host, as the user named it.
        facts: Facts of the board, as its agent would report them.
        process: Runs trials, races and probes there.
    """

    name: str
    facts: DeviceFacts
    process: TrialProcess

    @property
    def machine(self) -> str:
        """Return the SoC or the processor."""
        return self.facts.soc or self.facts.cpu_model or "unknown processor"

    @property
    def words(self) -> str:
        """Return the hardware and the runtime in words, without the name of the host."""
        return f"{self.facts.arch}, {self.machine}, onnxruntime {self.facts.runtime}"
