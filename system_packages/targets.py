"""Targets of the packages, as data: releases with their Python, architectures, providers."""

from typing import NamedTuple


class Release(NamedTuple):
    """A release of an operating system.

    Attributes:
        name: Code name.
        glibc: Minor version of its glibc 2.
    """

    name: str
    glibc: int


RELEASES = {
    "3.11": Release("bookworm", 36),
    "3.12": Release("noble", 39),
    "3.13": Release("trixie", 41),
}
"""Minor version of Python -> the first release with this version as its own.

Wheels with compiled code are for a single minor version, so each version needs its own packages.
"""
DEBIAN = ("bookworm", "trixie")
"""Releases of Debian: only these can be the base of an image."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture -> the name in the tags of wheels."""
REQUIREMENTS = "device-cpu.txt"
"""File in `requirements/` with the distributions of the agent and of its provider."""


def platform_tags(release: Release, architecture: str) -> list[str]:
    """Return the tags of wheels that run on a release.

    Args:
        release: The release.
        architecture: Debian's name.
    """
    machine = MACHINES[architecture]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(release.glibc, 16, -1)]
    return [*tags, f"manylinux2014_{machine}"]
