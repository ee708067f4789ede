"""Methods of `FleetClient` for enrolment and certificates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from edgepack.agent.enrolment.asking import check_url
from edgepack.agent.enrolment.device_folder import check_unused, write_device_folder
from edgepack.agent.enrolment.identity import key_pem, load_key, make_key, make_signing_request
from edgepack.agent.enrolment.package import Package, check_free, write_package
from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.bundle.chunks import read_bounded
from edgepack.durable import write_file
from edgepack.errors import DeviceError, FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.devices import (
    EnrolledDevice,
    Enrollment,
    EnrollRequest,
    PackagedDevice,
    RevocationRequest,
    Revocations,
)
from edgepack.fleet.enrolment.device_sources import check_sources
from edgepack.wire import topics

MAX_CERTIFICATE_BYTES = 64 * 1024
TOKEN_S = 24 * 3600.0
"""How long a device may take to come to the fleet with its token."""


class EnrolmentMethods:
    """Methods of `FleetClient` for enrolment and identities of devices."""

    _connection: Connection

    def revocations(self, path: str | Path) -> Revocations:
        """Write the list of revoked certificates; the broker reads the list at a SIGHUP.

        Args:
            path: The file, `ca.crl` in the broker's folder.

        Returns:
            The list.

        Raises:
            FleetError: Nobody serves there, or the file cannot be written.

        Example:
            ```python
            fleet.revocations("ca.crl")
            ```
        """
        found = self._connection.get("/v1/revocations", Revocations)
        try:
            write_file(Path(path), found.pem.encode())
        except OSError as error:
            raise FleetError(
                f"cannot write the list of revoked certificates: {error.strerror}",
                found_in=str(path),
            ) from error
        return found

    def revoke(self, certificate: str | Path) -> Revocations:
        """Revoke a certificate of which the fleet does not know the number.

        Devices enrolled by early versions have certificates without a stored number; without this
        call these certificates stay valid until they expire. `revocations` writes the list for the
        broker.

        Args:
            certificate: The file, `device.crt` in the folder that the device was set up from.

        Returns:
            The list of revoked certificates.

        Raises:
            FleetError: The file cannot be read, or holds no certificate of the fleet's CA.

        Example:
            ```python
            fleet.revoke("cam-8/device.crt")
            ```
        """
        try:
            pem = read_bounded(Path(certificate), MAX_CERTIFICATE_BYTES).decode(errors="replace")
        except OSError as error:
            raise FleetError(
                f"the certificate cannot be read: {error.strerror}", found_in=str(certificate)
            ) from error
        request = RevocationRequest(certificate=pem)
        return self._connection.post("/v1/revocations", Revocations, request)

    def enroll(
        self,
        device: str,
        *,
        group: str,
        folder: str | Path,
        state_dir: str | Path = DEFAULT_STATE_DIR,
        labels: Mapping[str, str] | None = None,
        replace: bool = False,
        sources: Sequence[str] = (),
    ) -> EnrolledDevice:
        """Enrol a device and write the folder for its setup.

        The folder gets `agent.toml`, the public keys that the device shall trust, a private key
        and its certificate. The key is made here and is sent to nobody.

        Args:
            device: Its id: letters, digits, `-` and `_`.
            group: Its group.
            folder: Created when missing; to be copied to the device.
            state_dir: Where the device keeps its state; a relative path is resolved here.
            labels: Its first labels, by key.
            replace: Whether an enrolled id gets new credentials; the old credentials are revoked.
            sources: URLs of bundle sources that the device tries before the broker; by default the
                sources of `fleet serve`.

        Returns:
            The enrolled device and the path of its settings.

        Raises:
            FleetError: A name is impossible, the id is enrolled already, the fleet trusts no key
                yet, a source is none, or the folder holds settings already or cannot be written.

        Example:
            ```python
            print(fleet.enroll("cam-8", group="cameras", folder="cam-8").config)
            ```
        """
        folder = Path(folder)
        check_sources(sources)
        with _as_fleet_error():
            check_unused(folder)
        request = self._request(device, group, labels, replace=replace)
        package = self._enroll(request, Path(state_dir), sources)
        key = load_key(package.key.encode(), "the new key")
        with _as_fleet_error():
            config, _ = write_device_folder(folder, package, package.certificate, key)
        return EnrolledDevice(device=device, group=group, config=config)

    def enroll_package(
        self,
        device: str,
        *,
        group: str,
        package: str | Path,
        enrol_at: str = "",
        enrol_authority: str | Path | None = None,
        valid_s: float = TOKEN_S,
        state_dir: str | Path = DEFAULT_STATE_DIR,
        labels: Mapping[str, str] | None = None,
        replace: bool = False,
        sources: Sequence[str] = (),
    ) -> PackagedDevice:
        """Enrol a device and write a single file for its setup.

        A device that reaches the fleet makes its key itself and gets a certificate with a token;
        the token is valid once, for this device only. Else the file holds a key that is made here,
        and its certificate.

        Args:
            device: Its id: letters, digits, `-` and `_`.
            group: Its group.
            package: The file, for its owner only; something that lies there is not overwritten.
            enrol_at: URL at which the device reaches this fleet; "" if the device cannot reach the
                fleet.
            enrol_authority: PEM file of the authority that the device trusts there; None for the
                authorities of its system.
            valid_s: How long the token is good, seconds.
            state_dir: Where the device keeps its state; a relative path is resolved here.
            labels: Its first labels, by key.
            replace: Whether an enrolled id gets new credentials; the old credentials are revoked.
            sources: URLs of bundle sources that the device tries before the broker; by default the
                sources of `fleet serve`.

        Returns:
            The enrolled device and the path of the file.

        Raises:
            FleetError: A name is invalid, the id is enrolled already, the fleet trusts no key yet,
                the file cannot be written, or `enrol_at` or a source is not a valid URL.

        Example:
            ```python
            made = fleet.enroll_package(
                "cam-8", group="cameras", package="cam-8.enrol", replace=True
            )
            print(made.package)
            ```
        """
        package = Path(package)
        check_sources(sources)
        with _as_fleet_error():
            check_free(package)
            if enrol_at:
                check_url(enrol_at)
        authority = _read_authority(Path(enrol_authority)) if enrol_authority else ""
        request = self._request(device, group, labels, replace=replace)
        if enrol_at:
            request = msgspec.structs.replace(request, token_valid_s=valid_s)
        made = self._enroll(request, Path(state_dir), sources)
        if made.token:
            made = msgspec.structs.replace(made, enrol_at=enrol_at, enrol_authority=authority)
        with _as_fleet_error():
            write_package(package, made)
        return PackagedDevice(
            device=device, group=group, package=package, expires_at=made.expires_at
        )

    def _request(
        self, device: str, group: str, labels: Mapping[str, str] | None, *, replace: bool
    ) -> EnrollRequest:
        for name, what in ((device, "device id"), (group, "group")):
            try:
                topics.check_name(name, what)
            except ValueError as error:
                remedy = "edgepack fleet enroll cam-7 --group cameras"
                raise FleetError(str(error), remedy=remedy) from error
        return EnrollRequest(device=device, group=group, labels=dict(labels or {}), replace=replace)

    def _enroll(self, request: EnrollRequest, state_dir: Path, sources: Sequence[str]) -> Package:
        """Enrol a device; make its key here, unless the device gets a token."""
        key = None
        if request.token_valid_s is None:
            key = make_key()
            signing_request = make_signing_request(key, request.device).decode()
            request = msgspec.structs.replace(request, signing_request=signing_request)
        told = self._connection.post("/v1/devices", Enrollment, request)
        return Package(
            device=told.device,
            tenant=told.tenant,
            broker=told.broker,
            state_dir=str(state_dir.absolute()),
            trusted_keys=told.trusted_keys,
            sources=tuple(sources) or told.sources,
            authority=told.authority,
            root=told.root,
            certificate=told.certificate,
            key=key_pem(key).decode() if key else "",
            token=told.token,
            expires_at=told.expires_at,
        )


@contextmanager
def _as_fleet_error() -> Iterator[None]:
    """Raise an error of writing a device's files as an error of the fleet."""
    try:
        yield
    except DeviceError as error:
        raise FleetError(error.problem, found_in=error.found_in, remedy=error.remedy) from error


def _read_authority(path: Path) -> str:
    try:
        return read_bounded(path, MAX_CERTIFICATE_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"the authority cannot be read: {error}", found_in=str(path)) from error
