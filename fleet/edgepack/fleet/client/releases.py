"""Methods of `FleetClient` for releases."""

import tempfile
from pathlib import Path
from urllib.parse import quote, urlencode

from edgepack.bundle.archive import pack, read_head
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.forms import check_folder
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.releases import KEPT_RELEASES, BundleHead, ReleaseView


class ReleaseMethods:
    """The methods of a `FleetClient` that are about releases."""

    _connection: Connection

    def releases(self) -> tuple[ReleaseView, ...]:
        """Return the releases that the fleet holds.

        Returns:
            The newest first.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            newest = fleet.releases()[0].bundle.version
            ```
        """
        return self._connection.get("/v1/releases", tuple[ReleaseView, ...])

    def unneeded_releases(self, keep: int = KEPT_RELEASES) -> tuple[ReleaseView, ...]:
        """Return releases that could be withdrawn: unused, and newer releases exist.

        A publisher can list a few hundred releases; `publish` says when there is no room left.

        Args:
            keep: How many of the newest of each model are left out.

        Returns:
            By model, the newest first.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            for release in fleet.unneeded_releases(keep=10):
                fleet.withdraw(release.bundle.digest)
            ```
        """
        return self._connection.get("/v1/releases/unneeded", tuple[ReleaseView, ...], keep=keep)

    def remove_release(self, release: str) -> ReleaseView:
        """Delete a release that nothing points to; its name, version and counter stay taken.

        Args:
            release: `NAME@VERSION`, or the first digits of its digest.

        Returns:
            The release that is gone.

        Raises:
            FleetError: The release does not exist or is in use: a device runs or keeps the release,
                a rollout of the release is unfinished, or new devices would get the release.

        Example:
            ```python
            from edgepack.fleet import FleetError

            try:
                fleet.remove_release("model@1.1.0")
            except FleetError as error:
                print(error.problem, error.found_in)
            ```
        """
        path = f"/v1/releases/{quote(release, safe='')}"
        return self._connection.delete(path, ReleaseView)

    def publish(self, bundle: str | Path, source: str = "") -> ReleaseView:
        """Upload a bundle to the fleet; a bundle that the fleet already holds stays unchanged.

        Args:
            bundle: An `.edgepack` archive, or a bundle's folder.
            source: Where the same bundle rests, for controllers that share no folder:
                `oci://…@sha256:…`, or an `https://` URL of its archive; "" for nowhere.

        Returns:
            The release, for `start_rollout`.

        Raises:
            FleetError: The bundle does not exist, is damaged or is not signed by a trusted key, the
                fleet holds another content under the same name and version or release counter, the
                fleet's disk is full, or the source is invalid.

        Example:
            ```python
            release = fleet.publish("model-1.3.0.edgepack")
            ```
        """
        bundle = existing(bundle)
        path = f"/v1/releases?{urlencode({'source': source})}" if source else "/v1/releases"
        if bundle.is_file():
            return self._connection.upload(path, ReleaseView, bundle)
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            archive = Path(folder) / "bundle.edgepack"
            pack(bundle, archive)
            return self._connection.upload(path, ReleaseView, archive)


def existing(bundle: str | Path) -> Path:
    """Return the path of a bundle that is there.

    Raises:
        FleetError: There is none.
    """
    bundle = Path(bundle)
    if not bundle.is_file() and not bundle.is_dir():
        raise FleetError(
            "there is no such bundle",
            found_in=str(bundle),
            remedy="edgepack build MODEL.onnx --profile cpu --key release.key -o FILE.edgepack",
        )
    return bundle


def read_bundle_head(bundle: Path) -> BundleHead:
    """Return manifest and signature of a bundle, folder or archive.

    Raises:
        BundleError: The file or folder is not a bundle.
    """
    if bundle.is_file():
        head = read_head(bundle)
        return BundleHead(manifest=head.manifest_bytes, signature=head.signature)
    check_folder(bundle)
    manifest = read_bounded(bundle / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    return BundleHead(
        manifest=manifest, signature=read_bounded(bundle / SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    )
