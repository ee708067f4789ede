"""The fleet's folder on disk: database, releases, certificates, trusted keys, the API's token."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from edgepack.bundle.keys import key_id, load_public_key, public_pem
from edgepack.bundle.trust import TrustPolicy
from edgepack.durable import make_private, write_file
from edgepack.errors import FleetError
from edgepack.wire.topics import check_name

CONTROLLER = "edgepack-controller"
"""What the name of every controller begins with, and the name of no device."""
ONLINE_FOLDER, OFFLINE_FOLDER = "online", "offline"
"""Of keys that sign metadata, in the folder `tuf`."""
CONTROLLER_CERTIFICATE = "controller.crt"
MAX_CONTROLLERS = 16
"""Of one fleet's folder, at most."""


class DataFolder:
    """Creates and names the files in the folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FleetError(
                f"cannot make the fleet's folder: {error.strerror}",
                found_in=str(root),
                remedy="name another with --data",
            ) from error

    def protect_secrets(self) -> None:
        """Deny other users access to every file with a secret, of any origin.

        Raises:
            FleetError: A file with a secret belongs to another user.
        """
        folders = (self.pki, self.tuf / ONLINE_FOLDER, self.tuf / OFFLINE_FOLDER)
        files = [token_file(self.root), *self.pki.glob("*.key")]
        files += [path for folder in folders[1:] for path in folder.glob("*")]
        for path in (*folders, *files):
            try:
                make_private(path)
            except OSError as error:
                raise FleetError(
                    f"other users can read a secret of the fleet: {error.strerror}",
                    found_in=str(path),
                    remedy=f"chown it to the user of edgepack fleet serve, and chmod go= {path}",
                ) from error

    @property
    def database_url(self) -> str:
        """The database that is used when none is named."""
        return f"sqlite:///{self.root.resolve() / 'fleet.db'}"

    @property
    def tuf(self) -> Path:
        """Folder of TUF metadata and of its signing keys."""
        return self.root / "tuf"

    def token(self) -> str:
        """Return the API's bearer token, made once."""
        path = token_file(self.root)
        if not path.exists():
            write_file(path, secrets.token_urlsafe(32).encode(), mode=0o600)
        return path.read_text().strip()

    def controller(self, place: int = 0) -> str:
        """Return a controller's name, made once: its client id and, with certificates, its user
        name.

        Each has its own, so that two that meet at a broker do not throw each other out.

        Args:
            place: 0 for the first controller that works on this folder, 1 for the second …

        Raises:
            FleetError: The stored name is invalid.
        """
        return self._name(f"controller-{place + 1}" if place else "controller", CONTROLLER)

    def leader_client_id(self) -> str:
        """Return the MQTT client id of the leading controller; create the id on first use."""
        return self._name("controller-leader", f"{CONTROLLER}-leader")

    def _name(self, file: str, prefix: str) -> str:
        path = self.root / file
        if not path.exists():
            # Before every one had its own they were all called the same, and access rules say so.
            is_named = file == "controller" and (self.pki / CONTROLLER_CERTIFICATE).exists()
            name = prefix if is_named else f"{prefix}-{secrets.token_hex(4)}"
            write_file(path, name.encode())
        try:
            return check_name(path.read_text().strip(), "controller")
        except ValueError as error:
            raise FleetError(
                str(error),
                found_in=str(path),
                remedy="remove that file, and write the broker's "
                "settings again with edgepack fleet broker-config",
            ) from error

    @property
    def pki(self) -> Path:
        """Folder of the fleet's CA."""
        return self.root / "pki"

    def trust(self, keys: Sequence[Path]) -> TrustPolicy:
        """Add public keys to the trusted keys.

        Returns:
            Trust policy of the fleet for bundles; devices check for themselves which variants run.

        Raises:
            SignatureError: A file is not a public key.
        """
        folder = self.root / "trust"
        folder.mkdir(exist_ok=True)
        for path in keys:
            key = load_public_key(path)
            write_file(folder / f"{key_id(key)[:16]}.pub", public_pem(key))
        keys_of_all = tuple(load_public_key(path) for path in sorted(folder.glob("*.pub")))
        return TrustPolicy(keys=keys_of_all, allow_degraded_unsafe=True)


def token_file(root: Path) -> Path:
    """Return the path of the token."""
    return root / "token"


def default_root() -> Path:
    """Return the folder that is used when none is named: `~/.local/share/edgepack/fleet`."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "edgepack" / "fleet"
