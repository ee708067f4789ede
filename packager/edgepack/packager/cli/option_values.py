"""What the options of `edgepack build` say, from text to values."""

import os
from datetime import UTC, datetime

from edgepack.errors import BuildError
from edgepack.packager.search.time_limit import parse_duration


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Reads `--shape INPUT=1,3,320,320`.

    Raises:
        BuildError: It is no shape, or names no input.
    """
    name, _, sizes = text.rpartition("=")
    try:
        shape = tuple(int(size) for size in sizes.split(","))
    except ValueError as error:
        raise BuildError(
            f"'{text}' is no shape", found_in="--shape", remedy="--shape images=1,3,320,320"
        ) from error
    if not name:
        raise BuildError(
            f"'{text}' names no input", found_in="--shape", remedy="--shape images=1,3,320,320"
        )
    return name, shape


def parse_toolchain(text: str) -> tuple[str, str]:
    """Reads `--toolchain PROFILE=PYTHON`.

    Raises:
        BuildError: One of both is missing.
    """
    profile, _, python = text.partition("=")
    if not profile or not python:
        raise BuildError(
            f"'{text}' names no toolchain",
            found_in="--toolchain",
            remedy="--toolchain openvino-cpu=device/bin/python",
        )
    return profile, python


def search_budget(given: str | None, configured: str, path: str) -> float | None:
    """Seconds that the search may take: the option's, else the file's; None for no limit.

    Args:
        given: `--budget`, or None.
        configured: `budget` of the file, or "".
        path: The file.

    Raises:
        BuildError: It is no duration.
    """
    if given is not None:
        return parse_duration(given, "--budget")
    return parse_duration(configured, f"{path}, [build] budget") if configured else None


def creation_time(given: str | None) -> str:
    """The time to record: the option, else `SOURCE_DATE_EPOCH`, else none.

    Raises:
        BuildError: It is no time.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    try:
        if given:
            time = datetime.fromisoformat(given)
            if time.tzinfo is None:
                time = time.replace(tzinfo=UTC)
            time = time.astimezone(UTC)
        elif epoch:
            time = datetime.fromtimestamp(int(epoch), UTC)
        else:
            return ""
    except (ValueError, OverflowError, OSError) as error:
        raise BuildError(
            f"'{given or epoch}' is no time",
            found_in="--created-at" if given else "SOURCE_DATE_EPOCH",
            remedy="--created-at 2026-11-21T10:00:00Z"
            if given
            else "seconds since 1970, or unset it: git log -1 --format=%ct",
        ) from error
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
