"""The key that signs a device's published messages."""

import errno
import logging
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.config import AgentConfig
from edgepack.agent.enrolment.identity import key_pem, load_key, make_key, make_signing_request
from edgepack.agent.state.state_file import put_aside, read_regular
from edgepack.bundle.signing_keys import SigningKey, load_signing_key
from edgepack.durable import write_file
from edgepack.errors import DeviceError, SignatureError
from edgepack.wire.signed import BatchSigner, Sign

log = logging.getLogger(__name__)

OWN_KEY_FILE = "device.key"
"""In the state folder: the key of a device whose settings name none. No fleet knows such a key
before the device reports, so only one that takes in any device (`--auto-enroll`) accepts it."""
NOT_A_KEY = (errno.EINVAL, errno.EFBIG)
"""Not a regular file, or too long: see `read_regular`."""
_ANOTHER_KEY = "another key signs, which a fleet that knows the device refuses: enrol it again"


def make_signer(config: AgentConfig, boot: str) -> BatchSigner:
    """Return the batch signer for a process of this device.

    Args:
        config: The agent's settings.
        boot: Random id of the process.

    Raises:
        DeviceError: The key cannot be read or made, or is not an ECDSA P-256 key.
    """
    named = config.signing_key
    if not named:
        own = _OwnKey(Path(config.state_dir) / OWN_KEY_FILE)
        request = make_signing_request(own.key, config.device).decode()
        return _batches(config, boot, own.sign, request)
    path = Path(named)
    try:
        key = load_signing_key(named)
    except SignatureError as error:
        raise DeviceError(
            f"the device cannot sign its reports: {error.problem}",
            found_in=f"identity.key_file, {path}",
            remedy="enrol the device again: edgepack fleet enroll --replace",
        ) from error
    _check_curve(key, path)
    return _batches(config, boot, _signing_with(key), "")


def _batches(config: AgentConfig, boot: str, sign: Sign, request: str) -> BatchSigner:
    return BatchSigner(
        tenant=config.tenant,
        device=config.device,
        boot=boot,
        sign=sign,
        signing_request=request,
    )


class _OwnKey:
    """The key of a device that was not enrolled; created if missing.

    Nothing in its place, and no fault of the disk, keeps the agent from starting: models serve on.
    While the disk does not work, another key signs, and each signature tries the disk again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_kept = False
        self.key = make_key()
        self._settle(log.warning)

    def sign(self, content: bytes) -> bytes:
        if not self._is_kept:
            self._settle(log.debug)
        return self.key.sign(content, ec.ECDSA(hashes.SHA256()))

    def _settle(self, say: Callable[..., None]) -> None:
        """Read the existing key, or write the own key."""
        try:
            if found := _read_own(self._path):
                self.key = found
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_file(self._path, key_pem(self.key), mode=0o600)
            self._is_kept = True
        except OSError as error:
            say("%s: the device's key cannot be read or kept: %s", self._path, error.strerror)


def _read_own(path: Path) -> ec.EllipticCurvePrivateKey | None:
    """Return the key in the state folder; put an invalid file aside.

    Raises:
        OSError: The disk does not work.
    """
    try:
        content = read_regular(path)
        key = load_key(content, str(path)) if content is not None else None
        if key is not None:
            _check_curve(key, path)
    except DeviceError as error:
        _put_aside(path, error.problem)
    except OSError as error:
        if error.errno not in NOT_A_KEY:
            raise
        _put_aside(path, error.strerror or "")
    else:
        return key
    return None


def _put_aside(path: Path, because: str) -> None:
    aside = put_aside(path).name
    log.warning("%s was damaged (%s); put aside as %s; %s", path, because, aside, _ANOTHER_KEY)


def _check_curve(key: SigningKey, path: Path) -> None:
    if key.public_key().curve.name != "secp256r1":
        raise DeviceError(
            "the device's key is not an ECDSA P-256 key", found_in=f"identity.key_file, {path}"
        )


def read_signer(where: str) -> Sign:
    """Return a function that signs with the key in a file.

    Raises:
        SignatureError: The file holds no ECDSA P-256 key.
    """
    return _signing_with(load_signing_key(where))


def _signing_with(key: SigningKey) -> Sign:
    return lambda content: key.sign(content, ec.ECDSA(hashes.SHA256()))
