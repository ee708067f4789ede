"""An image for containers, written without a container engine (OCI image layout).

The lower layer has files of Debian's packages, the upper the packages of the agent. Nothing runs:
each architecture is made on any other.
"""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from system_packages.archive import write_tar
from system_packages.environment import PackagingError
from system_packages.targets import DEBIAN, RELEASES

USER, GROUP = 900, 901
"""Numbers of user `edgepack` and group `models` in the image, which owners of volumes refer to."""
_PACKAGES = ("base-files", "ca-certificates", "coreutils", "dash", "libstdc++6")
"""Packages of Debian next to Python; hooks may need a shell."""
_LEFT_OUT = ("/usr/share/locale/*", "/usr/share/man/*", "/usr/share/doc/*")
_USERS = f"""root:x:0:0:root:/root:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
edgepack:x:{USER}:{GROUP}:edgepack agent:/var/lib/edgepack:/usr/sbin/nologin
"""
_GROUPS = (
    f"root:x:0:\nvideo:x:44:edgepack\nrender:x:902:edgepack\nmodels:x:{GROUP}:\nnogroup:x:65534:\n"
)
_FOLDERS = ("etc/edgepack", "run/edgepack", "var/lib/edgepack")
_OWNED = dict.fromkeys(_FOLDERS, (USER, GROUP))
_MEDIA = "application/vnd.oci.image"


class Layer(NamedTuple):
    """A compressed layer.

    Attributes:
        path: The compressed file.
        digest: SHA-256 of the compressed file, hex.
        content_digest: SHA-256 of the uncompressed archive, hex.
    """

    path: Path
    digest: str
    content_digest: str


def make_base(python: str, architecture: str, archive: Path, *, epoch: int) -> None:
    """Write an archive of Debian's files: Python and what it needs, unpacked and not set up.

    Args:
        python: Minor version of Python.
        architecture: Debian's name.
        archive: Is written.
        epoch: Limit of the times of files, seconds since 1970.

    Raises:
        PackagingError: mmdebstrap fails, or no Debian has the version of Python.
    """
    release = RELEASES[python].name
    if release not in DEBIAN:
        raise PackagingError(f"no Debian has Python {python} as its own: no image for {release}")
    names = ",".join((f"python{python}", *_PACKAGES))
    options = [f"--dpkgopt=path-exclude={one}" for one in _LEFT_OUT]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright", "--variant=extract"]
    options += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", "--skip=output/dev"]
    run_mmdebstrap(release, architecture, names, archive, *options, epoch=epoch)


def run_mmdebstrap(
    release: str, architecture: str, names: str, archive: Path, *options: str, epoch: int
) -> None:
    """Write an archive of a root of Debian, from the sources of this machine's apt if it has any.

    Args:
        release: Code name.
        architecture: Debian's name.
        names: Packages, joined by commas.
        archive: Is written.
        options: Further options of mmdebstrap.
        epoch: Limit of the times of files, seconds since 1970.

    Raises:
        PackagingError: mmdebstrap is missing or fails.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise PackagingError("mmdebstrap is not installed; apt-get install mmdebstrap")
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".new")
    words = ["--format=tar", f"--architectures={architecture}", f"--include={names}", *options]
    sources = _sources(release)
    ended = subprocess.run(
        [program, *words, release, str(unfinished), *(["-"] if sources else [])],
        input=sources,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise PackagingError(f"mmdebstrap failed: {ended.stderr[-2000:]}")
    unfinished.replace(archive)


def _sources(release: str) -> str:
    """Return this machine's sources of a release for apt; "" if it has none."""
    if shutil.which("apt-get") is None:
        return ""
    form = "deb $(REPO_URI) $(CODENAME) $(COMPONENT)"
    words = ["apt-get", "indextargets", "--format", form, "Created-By: Packages", "Origin: Debian"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    lines = {line for line in listed.splitlines() if line.split()[2].startswith(release)}
    return "".join(f"{line}\n" for line in sorted(lines))


def compress_base(archive: Path, output: Path, *, preset: int) -> Layer:
    """Compress the archive of Debian's files.

    Args:
        archive: From `make_base`.
        output: Is written.
        preset: Effort of the compression, 0 to 9.
    """
    with archive.open("rb") as content, output.open("wb") as file:
        return _compress(content, output, file, preset)


def write_agent_layer(
    roots: tuple[Path, ...], base: Path, output: Path, *, epoch: int, preset: int
) -> Layer:
    """Write the layer above Debian's files: packages of the agent, users, folders, authorities.

    Args:
        roots: Folders with the files of packages as they are installed below `/`.
        base: Archive of Debian's files.
        output: Is written.
        epoch: Time of each file, seconds since 1970.
        preset: Effort of the compression, 0 to 9.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for root in roots:
            shutil.copytree(root, folder, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(folder / "usr/lib/systemd")
        for name in ("etc/ssl/certs", *_FOLDERS):
            (folder / name).mkdir(parents=True)
        (folder / "etc/passwd").write_text(_USERS)
        (folder / "etc/group").write_text(_GROUPS)
        with tarfile.open(base) as archive:
            names = sorted(one for one in archive.getnames() if _is_authority(one))
            found = [archive.extractfile(name) for name in names]
            authorities = b"".join(one.read() for one in found if one)
        (folder / "etc/ssl/certs/ca-certificates.crt").write_bytes(authorities)
        with tempfile.TemporaryFile() as content, output.open("wb") as file:
            write_tar(folder, content, epoch=epoch, owned=_OWNED)
            content.seek(0)
            return _compress(content, output, file, preset)


def write_image(
    layers: Mapping[str, tuple[Layer, ...]], output: Path, *, version: str, epoch: int
) -> None:
    """Write an archive with the image of each architecture (OCI image layout, one index).

    Args:
        layers: Debian's name of an architecture -> layers, the lowest first.
        output: Is written.
        version: Tag of the image.
        epoch: Time of the image, seconds since 1970.
    """
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "blobs/sha256").mkdir(parents=True)
        manifests = []
        for architecture, stack in sorted(layers.items()):
            for layer in stack:
                os.link(layer.path, folder / "blobs/sha256" / layer.digest)
            config = {
                "created": created,
                "architecture": architecture,
                "os": "linux",
                "config": {
                    "User": f"{USER}:{GROUP}",
                    "Env": [
                        "PATH=/usr/bin:/bin",
                        "LANG=C.UTF-8",
                        "RUNTIME_DIRECTORY=/run/edgepack",
                    ],
                    "Entrypoint": ["/usr/bin/edgepack-agent"],
                    "Cmd": ["run"],
                    "Volumes": {f"/{name}": {} for name in _FOLDERS},
                    "StopSignal": "SIGTERM",
                    "Labels": {"org.opencontainers.image.version": version},
                },
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [f"sha256:{layer.content_digest}" for layer in stack],
                },
                "history": [{"created": created, "created_by": "edgepack"} for _ in stack],
            }
            manifest = {
                "schemaVersion": 2,
                "mediaType": f"{_MEDIA}.manifest.v1+json",
                "config": _add(folder, config, "config.v1"),
                "layers": [
                    {
                        "mediaType": f"{_MEDIA}.layer.v1.tar+gzip",
                        "digest": f"sha256:{layer.digest}",
                        "size": layer.path.stat().st_size,
                    }
                    for layer in stack
                ],
            }
            platform = {"architecture": architecture, "os": "linux"}
            manifests.append({**_add(folder, manifest, "manifest.v1"), "platform": platform})
        index = {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA}.index.v1+json",
            "manifests": manifests,
        }
        tagged = {
            **_add(folder, index, "index.v1"),
            "annotations": {"org.opencontainers.image.ref.name": version},
        }
        (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        (folder / "index.json").write_text(json.dumps({**index, "manifests": [tagged]}))
        with output.open("wb") as file:
            write_tar(folder, file, epoch=epoch)


def _is_authority(name: str) -> bool:
    return name.startswith("./usr/share/ca-certificates/") and name.endswith(".crt")


def _add(folder: Path, document: Any, kind: str) -> dict[str, Any]:
    """Add a JSON document to an image and return its descriptor."""
    content = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(content).hexdigest()
    (folder / "blobs/sha256" / digest).write_bytes(content)
    media = f"{_MEDIA}.{kind}+json"
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(content)}


def _compress(content: IO[bytes], path: Path, file: IO[bytes], preset: int) -> Layer:
    digest = hashlib.sha256()
    with gzip.GzipFile("", "wb", preset, file, mtime=0) as packed:
        while block := content.read(1 << 20):
            digest.update(block)
            packed.write(block)
    file.flush()
    with path.open("rb") as written:
        return Layer(path, hashlib.file_digest(written, "sha256").hexdigest(), digest.hexdigest())
