"""Settings of verifications in serving processes, written by the agent."""

import contextlib
from pathlib import Path
from typing import Annotated

import msgspec

from edgepack.agent.state.state_file import read_regular
from edgepack.durable import write_file
from edgepack.versions import Format, NewerVersionError, Version

VERIFICATION_FILE = "verification.json"


class VerificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Pace of verifications.

    Attributes:
        interval_s: Seconds between two rounds of the golden samples, at least; 0 means never.
        share: Share of the time that verifications take, at most.
    """

    interval_s: Annotated[float, msgspec.Meta(ge=0, le=7 * 24 * 3600)] = 1800.0
    share: Annotated[float, msgspec.Meta(ge=1e-5, le=0.05)] = 0.001


VERIFICATION = Format("settings of verifications", VerificationSettings, Version(1, 0))


def write_verification(state_dir: Path, settings: VerificationSettings) -> str:
    """Write the settings for serving processes. For the agent.

    Returns:
        Reason for a failure, as a sentence; "" after success.
    """
    path = state_dir / VERIFICATION_FILE
    if read_verification(state_dir) == settings and path.is_file():
        return ""
    try:
        write_file(path, VERIFICATION.encode(settings))
    except OSError as error:
        return f"settings of verifications cannot be written: {error.strerror} ({path})"
    return ""


def read_verification(state_dir: Path) -> VerificationSettings:
    """Return the settings; the defaults where none can be read."""
    with contextlib.suppress(OSError, ValueError, NewerVersionError):
        content = read_regular(state_dir / VERIFICATION_FILE)
        if content is not None:
            return VERIFICATION.decode(content).value
    return VerificationSettings()
