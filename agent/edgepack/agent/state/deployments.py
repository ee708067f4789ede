"""Deployments of another fleet's system: what served before, until that system decides.

`deployments/<name>.json` in the state folder: written before an installation, removed by commit or
rollback.
"""

from pathlib import Path

import msgspec

from edgepack.agent.state.models import MODEL_NAME
from edgepack.agent.state.state_file import read_regular
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from edgepack.versions import Format, NewerVersionError, Version
from edgepack.wire.orders import BundleRef

FOLDER = "deployments"


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Deployment that its system has neither committed nor rolled back.

    Attributes:
        bundle: The release that the system installs.
        before: The release that was committed before; None if the device had no such model.
    """

    bundle: BundleRef
    before: BundleRef | None = None


_FORMAT = Format("deployment", Deployment, Version(1, 0))


def begin_deployment(state_dir: Path, bundle: BundleRef, before: BundleRef | None) -> None:
    """Note what serves before an installation; a repeated installation changes nothing.

    Raises:
        DeviceError: The note of an earlier deployment cannot be read.
        OSError: The note cannot be written.
    """
    found = read_deployments(state_dir).get(bundle.name)
    if found is None or found.bundle != bundle:
        path = _path(state_dir, bundle.name)
        path.parent.mkdir(exist_ok=True)
        write_file(path, _FORMAT.encode(Deployment(bundle=bundle, before=before)))


def read_deployments(state_dir: Path) -> dict[str, Deployment]:
    """Return the deployments that wait for a decision, by model.

    Raises:
        DeviceError: A note is damaged, or a newer edgepack wrote it.
        OSError: The folder cannot be read.
    """
    found = {}
    for path in sorted((state_dir / FOLDER).glob("*.json")):
        name = path.name.removesuffix(".json")
        content = read_regular(path) if MODEL_NAME.fullmatch(name) else None
        if content is None:
            continue
        try:
            found[name] = _FORMAT.decode(content).value
        except (ValueError, NewerVersionError) as error:
            raise DeviceError(
                f"the note of a deployment cannot be read: {error}",
                found_in=str(path),
                remedy="edgepack-agent status; then remove the file",
            ) from error
    return found


def end_deployment(state_dir: Path, name: str) -> None:
    """Forget a deployment."""
    _path(state_dir, name).unlink(missing_ok=True)


def _path(state_dir: Path, name: str) -> Path:
    return state_dir / FOLDER / f"{name}.json"
