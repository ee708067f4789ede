"""A fleet's image repository in a folder, with real keys, and a clock that a test moves."""

import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from tuf.api.metadata import Metadata, Root, Targets

from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, decode_manifest
from edgepack.fleet.repository import ceremony
from edgepack.fleet.repository.keyring import make_key
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.roles import ONLINE
from edgepack.wire.orders import BundleRef
from tests.simulators.bundles import ExampleBundle

START = 1_800_000_000.0


@lru_cache(maxsize=1)
def _template() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="edgepack-repository-"))
    ceremony.init(ImageRepository(folder, wall=lambda: START), START)
    return folder


class RepositoryWorld:
    """A repository, its keys and the time.

    Args:
        folder: Folder of the repository; made, or reused from an earlier instance.
        now: Seconds since the epoch.
    """

    def __init__(self, folder: Path, *, now: float = START) -> None:
        self.now = now
        if not folder.exists():
            shutil.copytree(_template(), folder)
        self.repository = ImageRepository(folder, wall=lambda: self.now)

    @property
    def root(self) -> bytes:
        """The first root, for enrolment."""
        content = self.repository.files.content("1.root.json")
        assert content is not None
        return content

    def publish(self, bundle: ExampleBundle) -> BundleRef:
        assert self.repository.publish(bundle.ref, read_manifest(bundle))
        return bundle.ref

    def rotate(self, role: str) -> None:
        """Replace all keys of a role."""
        repository = self.repository
        old = [key.keyid for key in repository.state.keys(role)]
        folder = repository.online if role in ONLINE else repository.offline
        new = [make_key(folder, role, is_offline=False) for _ in old]
        ceremony.change_keys(repository, role, self.now, add=new, remove=old)

    def metadata(self, name: str) -> Metadata[Root] | Metadata[Targets]:
        content = self.repository.files.content(name)
        assert content is not None
        return Metadata.from_bytes(content)


def read_manifest(bundle: ExampleBundle) -> Manifest:
    return decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())


class MemoryCache(dict[str, bytes]):
    """A device's cache of metadata, without a disk."""

    def load(self, name: str) -> bytes | None:
        return self.get(name)

    def save(self, name: str, content: bytes) -> None:
        self[name] = content
