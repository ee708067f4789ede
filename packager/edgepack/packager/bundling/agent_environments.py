"""Environments of the agent, as artefacts of a release: taken from Debian packages of the agent.

The packages of one architecture and one minor version of Python are an environment together: the
agent's package, and its provider's.
"""

import hashlib
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from email.parser import HeaderParser
from io import BytesIO
from pathlib import Path

import msgspec

from edgepack.agent.self_update.environment_archive import pack_environment
from edgepack.bundle.agent_release import AGENT_RELEASE
from edgepack.bundle.chunks import open_regular
from edgepack.bundle.manifest import FIRMWARE_FOLDER, Firmware
from edgepack.errors import BuildError, BundleError
from edgepack.packager.bundling.shipped_firmware import ShippedFirmware

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture -> name of the machine."""
_HOME = re.compile(r"\./usr/lib/edgepack/(lib/python3\.(\d{1,2})/site-packages/.+)")
_METADATA = re.compile(r"lib/[^/]+/site-packages/edgepack-[^/]+\.dist-info/METADATA")
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60
_REMEDY = "make packages builds them in dist/"


class AgentEnvironments(msgspec.Struct, frozen=True, kw_only=True):
    """Environments of a release.

    Attributes:
        version: Version of edgepack in all environments.
        shipped: An artefact for each kind of device.
    """

    version: str
    shipped: tuple[ShippedFirmware, ...]


def write_environments(packages: Sequence[Path], folder: Path) -> AgentEnvironments:
    """Write an archive for each environment in the packages.

    Args:
        packages: Files `.deb` of the agent and of its providers.
        folder: Receives unpacked files and archives.

    Raises:
        BuildError: A file is not a package of the agent, or a provider is without the agent.
        OSError: The disk does not work.
    """
    trees: dict[str, dict[str, Path]] = {}
    for package in packages:
        for kind, path, file in _unpack(package, folder):
            trees.setdefault(kind, {})[path] = file
    versions, shipped = set(), []
    for kind, files in sorted(trees.items()):
        version = _edgepack_version(kind, files)
        archive = folder / f"{AGENT_RELEASE}-{kind}.tar"
        try:
            with archive.open("wb") as output:
                boundaries = pack_environment(files, output)
        except BundleError as error:
            raise BuildError(error.problem, found_in=kind, remedy=_REMEDY) from error
        with archive.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        firmware = Firmware(
            installer=AGENT_RELEASE,
            compatible=kind,
            version=f"{version}{'.' if '+' in version else '+'}{digest[:12]}",
            file=f"{FIRMWARE_FOLDER}/{archive.name}",
        )
        shipped.append(
            ShippedFirmware(firmware=firmware, file=archive, boundaries=tuple(boundaries))
        )
        versions.add(version)
    if len(versions) != 1:
        found = ", ".join(sorted(versions)) or "none"
        raise BuildError(
            f"a release of the agent has one version of edgepack; the packages have {found}",
            remedy=_REMEDY,
        )
    return AgentEnvironments(version=versions.pop(), shipped=tuple(shipped))


def _unpack(package: Path, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Unpack the environment of a package; yield kind, path in the environment, and file."""
    try:
        members = _read_members(package)
        with tarfile.open(
            fileobj=BytesIO(lzma.decompress(_member(members, "control.tar.xz")))
        ) as control:
            found = control.extractfile("./control")
            fields = HeaderParser().parsestr(found.read().decode() if found else "")
        machine = MACHINES[fields["Architecture"]]
        with tarfile.open(
            fileobj=BytesIO(lzma.decompress(_member(members, "data.tar.xz")))
        ) as data:
            for number, entry in enumerate(data):
                named = _HOME.fullmatch(entry.name)
                content = data.extractfile(entry) if named and entry.isreg() else None
                if named is None or content is None:
                    continue
                file = folder / f"{package.name}-{number}"
                file.write_bytes(content.read())
                yield f"{machine}-cp3{named[2]}", named[1], file
    except (BundleError, KeyError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise BuildError(
            f"not a package of the agent: {error}", found_in=str(package), remedy=_REMEDY
        ) from error


def _member(members: Mapping[str, bytes], name: str) -> bytes:
    """Return a member of a package.

    Raises:
        ValueError: The package has no such member, for instance since it is compressed otherwise.
    """
    if name not in members:
        raise ValueError(f"it has no {name}, but {', '.join(members) or 'nothing'}")
    return members[name]


def _read_members(package: Path) -> dict[str, bytes]:
    """Return the members of an archive of `ar`, by name."""
    members = {}
    with open_regular(package) as file:
        if file.read(len(_AR_MAGIC)) != _AR_MAGIC:
            raise ValueError("no archive of ar")
        while len(header := file.read(_AR_HEADER)) == _AR_HEADER:
            size = int(header[48:58])
            members[header[:16].decode("ascii").strip(" /")] = file.read(size)
            file.seek(size % 2, 1)
    return members


def _edgepack_version(kind: str, files: dict[str, Path]) -> str:
    for path, file in files.items():
        if _METADATA.fullmatch(path):
            return str(HeaderParser().parsestr(file.read_text())["Version"])
    raise BuildError(
        "a provider's package needs the agent's package of the same kind next to it",
        found_in=kind,
        remedy=_REMEDY,
    )
