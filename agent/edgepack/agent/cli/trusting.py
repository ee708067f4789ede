"""Trust of this device, from its settings: keys, the fleet's root, and the source of metadata."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from edgepack.agent.broker.inbox import Arrived, Inbox
from edgepack.agent.config import AgentConfig
from edgepack.agent.state.metadata_cache import MetadataCache
from edgepack.agent.state.state_file import read_regular
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import DeviceError, TrustError
from edgepack.wire import topics
from edgepack.wire.orders import BundleRef

if TYPE_CHECKING:
    from edgepack.agent.update.device_trust import DeviceTrust
    from edgepack.agent.update.metadata_fetcher import MetadataFetcher

METADATA_FOLDER = "metadata"
"""Beside a bundle on a stick: the fleet's metadata."""


def make_fetcher(
    config: AgentConfig, inbox: Inbox, trust: "DeviceTrust | None"
) -> "MetadataFetcher | None":
    """Return the fetcher of metadata over HTTP; None without a URL in the settings.

    Raises:
        EdgepackError: The settings name an invalid URL.
    """
    if trust is None or not config.trust.metadata:
        return None
    from edgepack.agent.update.metadata_fetcher import MetadataFetcher
    from edgepack.trust.sources import HttpSource

    def put(name: str, content: bytes) -> None:
        inbox.put(Arrived(topic=topics.metadata(config.tenant, name), payload=content))

    return MetadataFetcher(
        HttpSource(config.trust.metadata),
        _read_root(config),
        MetadataCache(Path(config.state_dir)),
        is_lacking=lambda: trust.is_lacking,
        put=put,
    )


def load_device_trust(
    config: AgentConfig, cache: type[MetadataCache] = MetadataCache
) -> "DeviceTrust | None":
    """Return the device's state of trust in its fleet; None if enrolled without a root.

    Raises:
        EdgepackError: The root cannot be read, or is none.
    """
    if not config.trust.root:
        return None
    # Loaded where it is needed: it takes 0.1 s and 5 MB.
    from edgepack.agent.update.device_trust import DeviceTrust

    return DeviceTrust(
        _read_root(config),
        cache(Path(config.state_dir)),
        tenant=config.tenant,
        device=config.device,
        arch=os.uname().machine,
        wall=time.time,
    )


def _read_root(config: AgentConfig) -> bytes:
    path = Path(config.trust.root)
    try:
        root = read_regular(path)
    except OSError as error:
        raise DeviceError(
            f"the fleet's root cannot be read: {error.strerror}", found_in=str(path)
        ) from error
    if root is None:
        raise DeviceError(
            "there is no such root, which the settings trust",
            found_in=str(path),
            remedy="copy root.json there, as edgepack fleet enroll wrote it",
        )
    return root


def check_released(
    config: AgentConfig,
    bundle: BundleRef,
    metadata: str | None,
    *,
    bundle_path: Path,
    saves: bool,
) -> None:
    """Reject a bundle that its fleet has not released, on a device that trusts a root.

    Args:
        config: The agent's settings.
        bundle: Bundle to install.
        metadata: Folder or URL of newer metadata; None looks for a folder next to the bundle.
        bundle_path: Folder of the bundle.
        saves: Whether newer metadata is stored; a running agent alone stores metadata.

    Raises:
        EdgepackError: The fleet's metadata does not list the bundle, is missing, or has expired.
    """
    trust = load_device_trust(config, _UnsavedMetadata if not saves else MetadataCache)
    if trust is None:
        return
    from edgepack.trust.sources import fetch_nothing, source_of

    folder = bundle_path.resolve().parent / METADATA_FOLDER
    place = metadata or (str(folder) if folder.is_dir() else None)
    try:
        trust.check_release(bundle, source_of(place) if place else fetch_nothing)
    except TrustError as error:
        raise TrustError(
            error.problem,
            found_in=error.found_in or place or "this device's received metadata",
            remedy="edgepack export BUNDLE --with-metadata -o FOLDER, where the fleet is reachable",
        ) from error


class _UnsavedMetadata(MetadataCache):
    """The cache with newer files in memory alone."""

    def __init__(self, state_dir: Path) -> None:
        self._newer: dict[str, bytes] = {}
        super().__init__(state_dir)

    def load(self, name: str) -> bytes | None:
        return self._newer.get(name) or super().load(name)

    def save(self, name: str, content: bytes) -> None:
        self._newer[name] = content


def load_trust(config: AgentConfig) -> TrustPolicy:
    """Load the keys of the accepted signers.

    Raises:
        EdgepackError: The settings name no key, or a key cannot be read.
    """
    if not config.trust.keys:
        raise DeviceError(
            "the settings trust no key, so no bundle could be accepted",
            found_in="the agent's settings, trust.keys",
            remedy='keys = ["release.pub"] below [trust]',
        )
    for path in config.trust.keys:
        if not Path(path).exists():
            raise DeviceError(
                "there is no such key, which the settings trust",
                found_in=path,
                remedy="copy the signer's public key there, or change trust.keys",
            )
    return TrustPolicy(
        keys=tuple(load_public_key(Path(path)) for path in config.trust.keys),
        allow_degraded_unsafe=config.trust.allow_degraded_unsafe,
    )
