"""Enrolment packages of a fleet that no device reaches."""

from pathlib import Path

from edgepack.agent.enrolment.identity import key_pem, make_key, make_signing_request
from edgepack.agent.enrolment.package import Package
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.fleet.enrolment.authority import Authority


def make_package(
    folder: Path, trusted_key: Path, state_dir: str = str(DEFAULT_STATE_DIR)
) -> Package:
    """Return the enrolment package of device `cam-1`, with a key and its certificate.

    Args:
        folder: Receives the authority of the fleet.
        trusted_key: File of a public key that signs bundles.
        state_dir: Of the device.
    """
    authority, key = Authority(folder), make_key()
    request = make_signing_request(key, "cam-1").decode()
    return Package(
        device="cam-1",
        tenant="default",
        broker="mqtts://127.0.0.1:1",
        trusted_keys=(trusted_key.read_text(),),
        authority=authority.pem,
        key=key_pem(key).decode(),
        certificate=authority.sign_client(request, "cam-1"),
        state_dir=state_dir,
    )
