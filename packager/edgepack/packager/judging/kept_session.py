"""The session of a trial, kept for the rehearsal of the same bytes with the same options.

To open a model on a vendor's simulator is to compile it: it takes as long as many inferences, and
of the same bytes with the same options comes the same. Anything else is opened anew.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgepack.agent.runtime.sessions import Session, open_session
from edgepack.bundle.manifest import Variant


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A model that was opened in this process.

    Attributes:
        model_file: Its name.
        digests: SHA-256 of each file that lay in its folder, hex, by POSIX path below that.
        provider, device, provider_options, session_options: What it was opened with.
        session: What came of it.
    """

    model_file: str
    digests: Mapping[str, str]
    provider: str
    device: str
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]
    session: Session

    def is_same(self, variant: Variant) -> bool:
        """Whether a variant whose files were verified would be opened from the same bytes."""
        files = {
            file.path.removeprefix(f"{variant.folder}/"): file.sha256
            for file in variant.facts.files
        }
        return (
            files == self.digests
            and variant.model_file == self.model_file
            and (variant.provider, variant.device) == (self.provider, self.device)
            and variant.provider_options == self.provider_options
            and variant.session_options == self.session_options
        )


class KeptSession:
    """At most one session, from one request to the next."""

    def __init__(self) -> None:
        self._opened: Opened | None = None

    def keep(self, opened: Opened) -> None:
        """Keeps a session in place of the one before."""
        self._opened = opened

    def open_variant(self, bundle_folder: Path, variant: Variant, *, threads: int) -> Session:
        """The session that is kept, where the variant is the same; else another, opened anew.

        Args:
            bundle_folder, variant, threads: See `open_session`; a trial leaves the threads to
                ONNX Runtime, so a variant that is to have a number of them is opened anew.

        Raises:
            DeviceError: See `open_session`.
        """
        kept = self._opened
        if kept is not None and not threads and kept.is_same(variant):
            return kept.session
        self._opened = None  # two models at once would hold twice the memory
        return open_session(bundle_folder, variant, threads=threads)


def digests_of(folder: Path) -> dict[str, str]:
    """SHA-256 of each file below a folder, hex, by POSIX path."""
    digests = {}
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                name = path.relative_to(folder).as_posix()
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests
