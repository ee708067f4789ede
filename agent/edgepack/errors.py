"""The errors that edgepack raises, each with problem, place and remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from edgepack.text import printable

_MOST_LETTERS = 1500
"""Of a line that is shown: what came in may be quoted there, however long it is."""


class EdgepackError(Exception):
    """Base of all errors of edgepack; shown to a person in up to three lines.

    Args:
        problem: Problem, as a sentence without a full stop.
        found_in: Where: a file, a key, a node, a topic.
        remedy: Remedy, usually a command.

    Example:
        ```python
        from edgepack.agent import EdgepackError, open_model

        try:
            open_model("defects", "/no/such/folder")
        except EdgepackError as error:
            print(error.problem, error.found_in, error.remedy, sep="\\n")
        ```
    """

    def __init__(
        self, problem: str, *, found_in: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.found_in = found_in
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.problem]
        if self.found_in:
            lines.append(f"  found in: {self.found_in}")
        if self.remedy:
            lines.append(f"  try: {self.remedy}")
        said = (line for text in lines for line in text.split("\n"))
        return "\n".join(_cut(printable(line)) for line in said)


@contextmanager
def located(place: object, within: tuple[str, ...] = ("",)) -> Iterator[None]:
    """Put a place before the places of errors in the block.

    Args:
        place: The place, such as a file; nothing is added for "".
        within: Prefixes of the places that lie in this place.
    """
    try:
        yield
    except EdgepackError as error:
        inner = error.found_in or ""
        if place and inner.startswith(within):
            error.found_in = f"{place}, {inner}" if inner else str(place)
        raise


def parse_problem(error: Exception) -> str:
    """Return the problem of a text that a parser rejected, in words for a person."""
    if isinstance(error, RecursionError):
        return "its lists or tables are nested too deeply"
    return str(error)


def _cut(line: str) -> str:
    """Return a readable line of bounded length, even if the line quotes received text."""
    return line if len(line) <= _MOST_LETTERS else f"{line[: _MOST_LETTERS - 1]}…"


class BundleError(EdgepackError):
    """Error of the input: the bundle cannot be trusted or read.

    Example:
        ```python
        from edgepack.agent import BundleError, open_model

        try:
            open_model("defects").close()
        except BundleError as error:
            print(f"the installed bundle is damaged: {error}")
        ```
    """


class SignatureError(BundleError):
    """A bundle's signature is missing, malformed, by another key, or does not fit the files."""


class TransferError(EdgepackError):
    """Error of the transfer: the broker, a topic, a message or a chunk is wrong."""


class TrustError(TransferError):
    """Metadata is signed by a wrong key, older than the known metadata, expired, missing, or about
    another subject."""


class DeviceError(EdgepackError):
    """Error of the device: the device cannot do the requested operation.

    Example:
        ```python
        from edgepack.agent import DeviceError, open_model

        try:
            open_model("defects", "/no/such/folder")
        except DeviceError as error:
            print(f"no model yet: {error.remedy}")
        ```
    """


class PictureError(EdgepackError):
    """Error of a picture: the picture cannot be decoded, or cannot be prepared for a model.

    Example:
        ```python
        from edgepack.agent import PictureError, open_model

        with open_model("defects") as model:
            try:
                model.classify(b"not a picture")
            except PictureError as error:
                print(error.problem)
        ```
    """


class SoundError(EdgepackError):
    """Error of a sound: the sound cannot be read.

    Example:
        ```python
        from edgepack.agent import SoundError, open_model

        with open_model("defects") as model:
            try:
                model.transcribe(b"not a sound")
            except SoundError as error:
                print(error.problem)
        ```
    """


class ProfileError(EdgepackError):
    """Error of the request: a profile is unknown, malformed or contradicts itself."""


class BuildError(EdgepackError):
    """Error of the build: a model, its calibration data, a pass or a gate."""


class FleetError(EdgepackError):
    """Error of a fleet request: unknown rollout, device, group or release."""
