"""The key with which a device signs what it publishes."""

import logging
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.agent.config import AgentConfig
from edgepack.agent.enrolment.identity import key_pem, make_key, make_signing_request
from edgepack.bundle.signing_keys import SigningKey, load_signing_key
from edgepack.durable import write_file
from edgepack.errors import DeviceError, SignatureError
from edgepack.wire.signed import BatchSigner, Sign

log = logging.getLogger(__name__)

OWN_KEY_FILE = "device.key"
"""In the state folder: the key of a device whose settings name none. No fleet knows such a key
before the device reports, so only one that takes in any device (`--auto-enroll`) accepts it."""


def make_signer(config: AgentConfig, boot: str) -> BatchSigner:
    """Return what signs for one process of this device.

    Args:
        config: The agent's settings.
        boot: Random id of the process.

    Raises:
        DeviceError: The key cannot be read or made, or is not an ECDSA P-256 key.
    """
    named = config.signing_key
    path = Path(named) if named else Path(config.state_dir) / OWN_KEY_FILE
    try:
        key = load_signing_key(named) if named else _own_key(path)
    except SignatureError as error:
        raise DeviceError(
            f"the device cannot sign its reports: {error}",
            found_in=f"identity.key_file, {path}",
            remedy="enrol the device again: edgepack fleet enroll --replace",
        ) from error
    if key.public_key().curve.name != "secp256r1":
        raise DeviceError(
            "the device's key is not an ECDSA P-256 key", found_in=f"identity.key_file, {path}"
        )
    request = ""
    if not named and isinstance(key, ec.EllipticCurvePrivateKey):
        request = make_signing_request(key, config.device).decode()
    return BatchSigner(
        tenant=config.tenant,
        device=config.device,
        boot=boot,
        sign=_signing_with(key),
        signing_request=request,
    )


def _own_key(path: Path) -> SigningKey:
    """Return the key of a device that was not enrolled; make it if there is none."""
    if path.exists():
        return load_signing_key(path)
    key = make_key()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, key_pem(key), mode=0o600)
    except OSError as error:
        log.warning("%s: the device's key cannot be kept: %s", path, error.strerror)
    return key


def read_signer(where: str) -> Sign:
    """Return what signs with the key in a file.

    Raises:
        SignatureError: The file holds no such key.
    """
    return _signing_with(load_signing_key(where))


def _signing_with(key: SigningKey) -> Sign:
    return lambda content: key.sign(content, ec.ECDSA(hashes.SHA256()))
