"""Record of a serving process: counts and sketches of its inferences, written to the spool."""

import contextlib
import os
import secrets
import time
from pathlib import Path

from edgepack.agent.telemetry.counts import Counts
from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.agent.telemetry.shadowed import ShadowRecorder
from edgepack.agent.telemetry.sketches import SketchRecorder
from edgepack.agent.telemetry.spool import Spooled, write_spooled


class Record:
    """Record of a model's inferences in this process, shared with the agent.

    Args:
        state_dir: The agent's state folder.
        model, digest, version, variant, provider: Release that runs.

    Attributes:
        has_served: Whether the release was open for the application.
        troubles: Why an adapter could not be opened.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        model: str,
        digest: str,
        variant: str,
        provider: str,
        version: str = "",
    ) -> None:
        self._state_dir = state_dir
        self.token = secrets.token_hex(8)
        self.model = model
        self.digest = digest
        self.version = version
        self.variant = variant
        self.provider = provider
        self.has_served = False
        self.troubles: tuple[str, ...] = ()
        self.since = time.time()
        self.latency = Counts()
        self.sketches = SketchRecorder()
        self.shadowed = ShadowRecorder()
        self._written: tuple[object, ...] = ()
        self._told = (0, 0, 0)
        with contextlib.suppress(OSError):  # Tried again at every write.
            write_spooled(state_dir, self.spooled((), is_final=False, is_alone=False), self.latency)

    def fail(self) -> None:
        """Count an inference that raised."""
        self.latency.fail()

    def count_not_finite(self) -> None:
        """Count an inference with NaN or infinity where the golden outputs have none."""
        self.latency.count_not_finite()

    def count_bad_input(self, name: str) -> None:
        """Count such an inference whose input `name` has NaN or infinity."""
        self.latency.count_bad_input(name)

    def spooled(self, troubles: tuple[str, ...], *, is_final: bool, is_alone: bool) -> Spooled:
        """Return all counts, in the agent's format."""
        return Spooled(
            token=self.token,
            pid=os.getpid(),
            model=self.model,
            digest=self.digest,
            version=self.version,
            variant=self.variant,
            provider=self.provider,
            since=self.since,
            written_at=time.time(),
            troubles=troubles,
            is_final=is_final,
            memory_bytes=memory_bytes() if is_alone else 0,
            features=self.sketches.snapshot(),
            shadowed=self.shadowed.snapshot(),
            **self.latency.snapshot()._asdict(),
        )

    def write(
        self, troubles: tuple[str, ...], *, is_final: bool = False, is_alone: bool = True
    ) -> None:
        """Write the record if anything changed since the last write.

        Args:
            troubles: See `Spooled`.
            is_final: See `Spooled`.
            is_alone: Whether the process holds no other release of the model, which would add to
                the measured memory.

        Raises:
            OSError: The spool cannot be written; the next write takes everything along.
        """
        spooled = self.spooled(troubles, is_final=is_final, is_alone=is_alone)
        told = (spooled.failures, spooled.not_finite, spooled.bad_inputs)
        state = (spooled.latency.count, *told, len(troubles), spooled.shadowed, is_final)
        if state != self._written:
            write_spooled(self._state_dir, spooled, self.latency)
            self._written, self._told = state, told
        if is_final:
            self.latency.close()

    @property
    def has_new_failures(self) -> bool:
        """True if inferences failed, or gave no finite outputs, since the last write."""
        counted = self.latency.snapshot()
        return (counted.failures, counted.not_finite, counted.bad_inputs) != self._told
