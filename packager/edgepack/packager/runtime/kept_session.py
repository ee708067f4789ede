"""The session of a trial, kept for the rehearsal of the same bytes with the same options.

Opening a model on a vendor's simulator compiles the model: as slow as many inferences, and equal
for the same bytes with the same options. Anything else is opened again. The same holds for
inferences, of which a simulator may need seconds each: the same inputs give the trial's outputs,
with the trial's time.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgepack.agent.runtime.opening import ProviderSettings, open_session, settings_of
from edgepack.agent.runtime.probing import ProbedSession
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.bundle.manifest import Placement, Variant
from edgepack.packager.runtime.provider_session import run_of_provider
from edgepack.packager.tensors.sequence import digest_of


class RememberingSession:
    """A session that repeats its outputs for known inputs.

    Args:
        session: Runs new inputs.
        clock: Seconds of processor time; only differences count.
    """

    def __init__(self, session: Session, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._session = session
        self._given: dict[bytes, tuple[dict[str, Tensor], float]] = {}

    @property
    def provider(self) -> str:
        """See `Session`."""
        return self._session.provider

    @property
    def placement(self) -> Placement:
        """See `Session`."""
        return self._session.placement

    def run_first(
        self,
        samples: Sequence[Mapping[str, Tensor]],
        *,
        least: int,
        more_s: float,
        end_s: float = math.inf,
    ) -> list[dict[str, Tensor]]:
        """Run and remember samples; inputs that the model does not have are left out.

        Args:
            samples: Samples in order.
            least: Number of samples that run for any duration.
            more_s: Further samples are begun for this long, seconds of processor time, so that a
                busy machine runs as many as an idle machine; the first samples count.
            end_s: By `time.monotonic`: a sample that may not end until then is not begun, but the
                first.

        Raises:
            DeviceError: The provider failed.
        """
        known = {tensor.name for tensor in self._session.inputs}
        outputs: list[dict[str, Tensor]] = []
        start_s, slowest_s = self._clock(), 0.0
        for feeds in samples:
            if len(outputs) >= least and self._clock() - start_s > more_s:
                break
            began_s = time.monotonic()
            if outputs and began_s + slowest_s > end_s:
                break
            used = {name: value for name, value in feeds.items() if name in known}
            given = self._session.run_timed(used)
            self._given[digest_of(used)] = given
            outputs.append(given[0])
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        return outputs

    def run(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run inputs without remembering the outputs; unknown inputs are left out.

        Raises:
            DeviceError: The provider failed.
        """
        return run_of_provider(self._session)(feeds)

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Run inputs and measure the time; see `Session.run_timed`."""
        return self._given.get(digest_of(feeds)) or self._session.run_timed(feeds)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was opened in this process.

    Attributes:
        path: Its file.
        digests: SHA-256 of each file that lay in its folder, hex, by POSIX path below that.
        settings: Settings of the session.
        session: Result of the session and of the trial.
    """

    path: Path
    digests: Mapping[str, str]
    settings: ProviderSettings
    session: RememberingSession

    def is_same(self, variant: Variant) -> bool:
        """Return True if a variant with verified files would be opened from the same bytes."""
        files = {
            file.path.removeprefix(f"{variant.folder}/"): file.sha256
            for file in variant.facts.files
        }
        return (
            files == self.digests
            and variant.model_file == self.path.name
            and settings_of(variant) == self.settings
        )


class KeptSession:
    """At most 1 session, kept between requests."""

    def __init__(self) -> None:
        self._opened: Opened | None = None

    def keep(self, opened: Opened) -> None:
        """Keep a session in place of the previous session."""
        self._opened = opened

    def find(self, path: Path, settings: ProviderSettings) -> RememberingSession | None:
        """Return the kept session if it has this path and these settings."""
        kept = self._opened
        if kept is None or (kept.path, kept.settings) != (path, settings):
            return None
        return kept.session

    def open_variant(self, bundle_folder: Path, variant: Variant, *, threads: int) -> ProbedSession:
        """Return the session that is kept, where the variant is the same; else another, opened
        again.

        Args:
            bundle_folder, variant, threads: See `open_session`; a trial leaves the threads to ONNX
                Runtime, so a variant with a number of threads is opened again.

        Raises:
            DeviceError: See `open_session`.
        """
        kept = self._opened
        if kept is not None and not threads and kept.is_same(variant):
            return kept.session
        self._opened = None  # two models at once would hold twice the memory
        return open_session(bundle_folder, variant, threads=threads)


def digests_of(folder: Path) -> dict[str, str]:
    """Return SHA-256 of each file below a folder, hex, by POSIX path."""
    digests = {}
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                name = path.relative_to(folder).as_posix()
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
