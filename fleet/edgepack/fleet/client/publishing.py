"""Methods of `FleetClient` for publishers: signing runs here, and keys stay here."""

import shutil
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, TargetFile, Targets

from edgepack.bundle.archive import pack
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.bundle.signature import root_digest
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.client.releases import ReleaseMethods, existing, read_bundle_head
from edgepack.fleet.documents.releases import (
    MetadataBundle,
    PublishedMetadata,
    PublishingView,
    ReleaseView,
    SignedMetadata,
    full_title,
)
from edgepack.fleet.repository.keyring import KeySigner
from edgepack.fleet.repository.lifetimes import expiry_of
from edgepack.trust.listing import list_release, target_path
from edgepack.trust.roles import read_file_name

METADATA_FOLDER, ARCHIVE_SUFFIX = "metadata", ".edgepack"


class PublishingMethods(ReleaseMethods):
    """The methods of a `FleetClient` that say which bundles are releases."""

    _connection: Connection

    def sign_release(
        self, bundle: str | Path, keys: Sequence[str | Path], source: str = ""
    ) -> PublishedMetadata:
        """List a bundle that the fleet holds as a release, signed by a publisher's keys.

        The listed target is computed from the local bundle, not from the fleet's answer.

        Args:
            bundle: An `.edgepack` archive or a bundle's folder, after `publish`.
            keys: Private keys of the publisher: PEM files, or PKCS #11 URIs of keys in tokens. The
                keys sign here and never leave this machine.
            source: As for `publish`.

        Returns:
            State of the signed metadata: signatures of other keys may be missing.

        Raises:
            FleetError: The fleet does not hold the bundle, its answer is not the expected next
                metadata, or the keys are not the publisher's.

        Example:
            ```python
            release = fleet.publish("model-1.3.0.edgepack")
            if not release.is_listed:
                fleet.sign_release("model-1.3.0.edgepack", ["team.key"])
            ```
        """
        path = existing(bundle)
        manifest = decode_manifest(read_bundle_head(path).manifest)
        release = self.publish(path, source).bundle
        facts = manifest.facts
        if (release.name, release.version, release.release) != (
            facts.name,
            facts.version,
            facts.release,
        ):
            raise FleetError(f"the fleet took the bundle for {full_title(release)}")
        view = self._publishing(release.digest)
        return self._sign(view, target_path(release), list_release(release, manifest), keys)

    def withdraw(
        self, release: str, keys: Sequence[str | Path] = ()
    ) -> ReleaseView | PublishedMetadata:
        """Withdraw a release: devices that do not run the release yet reject the release from now
        on.

        Args:
            release: `NAME@VERSION`, or the first digits of its digest.
            keys: Private keys of its publisher; none if the fleet holds the keys.

        Returns:
            The release, or the state of the signed metadata.

        Raises:
            FleetError: The release does not exist, or the keys are not its publisher's.

        Example:
            ```python
            from edgepack.fleet import FleetError

            try:
                fleet.withdraw("model@1.1.0")
            except FleetError as error:
                print(error.problem, error.found_in)
            ```
        """
        if not keys:
            path = f"/v1/releases/{quote(release, safe='')}/withdraw"
            return self._connection.post(path, ReleaseView)
        view = self._publishing(release)
        return self._sign(view, target_path(view.bundle), None, keys)

    def export(self, bundle: str | Path, folder: str | Path) -> Path:
        """Write a bundle and its release metadata for an offline device.

        Args:
            bundle: An `.edgepack` archive, or a bundle's folder.
            folder: Created when missing; gets `NAME-VERSION.edgepack` and `metadata/`.

        Returns:
            The archive, for `edgepack-agent install`.

        Raises:
            FleetError: The fleet has not released that bundle, or the folder cannot be written.

        Example:
            ```python
            fleet.export("model-1.3.0.edgepack", "stick")
            ```
        """
        path, folder = existing(bundle), Path(folder)
        head = read_bundle_head(path)
        manifest = decode_manifest(head.manifest)
        files = {entry.path: entry.sha256 for entry in manifest.files}
        digest = root_digest(files | {MANIFEST_FILE: sha256(head.manifest).hexdigest()})
        listed = [it.bundle.digest for it in self.releases() if it.is_listed]
        if digest not in listed:
            raise FleetError(
                "the fleet has not released this bundle, so no device would take it",
                found_in=str(path),
                remedy=f"edgepack publish {path}",
            )
        found = self._connection.get("/v1/metadata", MetadataBundle)
        archive = folder / f"{manifest.facts.name}-{manifest.facts.version}{ARCHIVE_SUFFIX}"
        try:
            (folder / METADATA_FOLDER).mkdir(parents=True, exist_ok=True)
            for name, content in found.files.items():
                if read_file_name(name) is not None:
                    write_file(folder / METADATA_FOLDER / name, content)
            if path.is_dir():
                pack(path, archive)
            elif path.resolve() != archive.resolve():
                shutil.copyfile(path, archive)
        except OSError as error:
            raise FleetError(
                f"cannot write what was asked for: {error.strerror}", found_in=str(folder)
            ) from error
        return archive

    def _publishing(self, release: str) -> PublishingView:
        path = f"/v1/releases/{quote(release, safe='')}/publishing"
        return self._connection.get(path, PublishingView)

    def _sign(
        self, view: PublishingView, path: str, target: TargetFile | None, keys: Sequence[str | Path]
    ) -> PublishedMetadata:
        draft = next_metadata(view, path, target, time.time())
        for key in keys:
            signer = KeySigner(load_signing_key(key))
            if signer.public_key.keyid not in view.keys:
                raise FleetError(
                    f"this is not a key of '{view.role}', which releases {view.bundle.name}",
                    found_in=str(key),
                    remedy="edgepack fleet keys list shows whose key is which",
                )
            draft.sign(signer, append=True)
        signed = SignedMetadata(role=view.role, metadata=draft.to_bytes().decode())
        return self._connection.post("/v1/metadata", PublishedMetadata, signed)


def next_metadata(
    view: PublishingView, path: str, target: TargetFile | None, now: float
) -> Metadata[Targets]:
    """Return a publisher's next metadata: unchanged except for a single release.

    Signatures of others for the same change are kept.

    Args:
        view: The fleet's answer about the publisher's metadata.
        path: The release.
        target: Target of the release; None withdraws the release.
        now: Seconds since the epoch.

    Raises:
        FleetError: The fleet's metadata cannot be read, or another change is waiting for
            signatures.
    """
    try:
        known = Metadata[Targets].from_bytes(view.metadata.encode()) if view.metadata else None
        pending = Metadata[Targets].from_bytes(view.pending.encode()) if view.pending else None
    except RepositoryError as error:
        raise FleetError("the fleet's metadata cannot be read") from error
    wanted = dict(known.signed.targets) if known else {}
    wanted.pop(path, None)
    if target is not None:
        wanted[path] = target
    version = known.signed.version + 1 if known else 1
    if pending is not None and pending.signed.version == version:
        if pending.signed.targets != wanted or pending.signed.delegations is not None:
            raise FleetError(
                f"another change of '{view.role}' waits for its signatures",
                remedy="sign that one first: edgepack publish its bundle with the other keys",
            )
        return pending
    expires = expiry_of(view.role, now)
    return Metadata(Targets(version=version, expires=expires, targets=wanted))
