"""What a `FleetClient` asks of devices, and tells them to do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.bundle.chunks import read_bounded
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceDetails,
    DeviceRemoval,
    DeviceView,
    EnrolledDevice,
    Enrollment,
    EnrollRequest,
    GroupView,
    RemovedDevice,
    RevocationRequest,
    Revocations,
)
from edgepack.fleet.documents.fleet import FleetInfo
from edgepack.fleet.enrolment.authority import make_key, make_signing_request
from edgepack.fleet.enrolment.device_folder import check_unused, write_device_folder
from edgepack.text import natural_order

MAX_CERTIFICATE_BYTES = 64 * 1024


class DeviceMethods:
    """The methods of a `FleetClient` that are about devices."""

    _connection: Connection

    def devices(self, group: str = "", *, where: str = "") -> tuple[DeviceView, ...]:
        """The enrolled devices: what each runs, on which provider, and how it fares.

        Args:
            group: Only the devices of this group; "" means all.
            where: Only the devices that this means, over labels and facts, such as
                `soc=QCS6490 and site=berlin`; "" means all.

        Returns:
            By id, `cam-2` before `cam-10`; empty when there are none.

        Raises:
            FleetError: Nobody serves there, the token is wrong, or `where` makes no sense.

        Example:
            ```python
            away = [view.device for view in fleet.devices("cameras") if not view.online]
            ```
        """
        found = self._connection.pages(
            "/v1/devices", DeviceView, lambda view: view.device, group=group, where=where
        )
        return tuple(sorted(found, key=lambda view: natural_order(view.device)))

    def groups(self) -> tuple[GroupView, ...]:
        """The groups of devices.

        Returns:
            By name, each with its number of devices and of those that are online.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            print({group.group: group.devices for group in fleet.groups()})
            ```
        """
        return self._connection.get("/v1/groups", tuple[GroupView, ...])

    def device(self, device: str) -> DeviceDetails:
        """One enrolled device.

        Args:
            device: Its id.

        Returns:
            What it is and runs, on which provider, how it fares, and the rollouts it was in.

        Raises:
            FleetError: No device of that id is enrolled.

        Example:
            ```python
            print(*(model.state for model in fleet.device("cam-7").models))
            ```
        """
        return self._connection.get(f"/v1/devices/{quote(device, safe='')}", DeviceDetails)

    def move_devices(self, devices: Sequence[str], group: str) -> tuple[DeviceView, ...]:
        """Moves devices to another group.

        What they are at goes on; afterwards they get what the rollouts gave that group.

        Args:
            devices: Their ids.
            group: Their new group.

        Returns:
            The devices as they are now.

        Raises:
            FleetError: One is not enrolled, or the group cannot be such a name.

        Example:
            ```python
            fleet.move_devices(["cam-7"], "doors")
            ```
        """
        change = DeviceChange(devices=tuple(devices), group=group)
        return self._connection.post("/v1/devices/change", tuple[DeviceView, ...], change)

    def label_devices(
        self, devices: Sequence[str], labels: Mapping[str, str]
    ) -> tuple[DeviceView, ...]:
        """Gives devices labels, to select them by.

        Args:
            devices: Their ids.
            labels: By key; an empty value takes a label away.

        Returns:
            The devices as they are now.

        Raises:
            FleetError: One is not enrolled, or a key or value cannot be such a one.

        Example:
            ```python
            fleet.label_devices(["cam-1", "cam-2"], {"site": "berlin"})
            print([device.device for device in fleet.devices(where="site=berlin")])
            ```
        """
        change = DeviceChange(devices=tuple(devices), labels=dict(labels))
        return self._connection.post("/v1/devices/change", tuple[DeviceView, ...], change)

    def remove_devices(self, devices: Sequence[str]) -> tuple[RemovedDevice, ...]:
        """Takes devices out of the fleet: nobody listens to them, their certificates are revoked.

        The broker learns of that from what `revocations` writes.

        Args:
            devices: Their ids.

        Returns:
            The devices, each with the certificate that was revoked.

        Raises:
            FleetError: One is not enrolled.

        Example:
            ```python
            fleet.remove_devices(["cam-7"])
            ```
        """
        removal = DeviceRemoval(devices=tuple(devices))
        return self._connection.post("/v1/devices/remove", tuple[RemovedDevice, ...], removal)

    def revocations(self, path: str | Path) -> Revocations:
        """Writes the list of revoked certificates for the broker, which reads it at a SIGHUP.

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
        """Revokes a certificate of which the fleet does not know the number.

        Those of devices that were enrolled before numbers were kept are such, and nothing else
        ends them before they expire. The broker learns of it from what `revocations` writes.

        Args:
            certificate: The file, `device.crt` in the folder that the device was set up from.

        Returns:
            The list of revoked certificates.

        Raises:
            FleetError: The file cannot be read, or holds no certificate of the fleet's CA.

        Example:
            ```python
            fleet.revoke("cam-7/device.crt")
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
    ) -> EnrolledDevice:
        """Takes a device into the fleet and writes the folder that it is set up from.

        The folder gets `agent.toml`, the public keys that the device shall trust and, where the
        broker speaks TLS, a private key and a certificate. The key is made here and is sent to
        nobody.

        Args:
            device: Its id: letters, digits, `-` and `_`.
            group: Its group.
            folder: Made when it is missing; to be copied to the device.
            state_dir: Where the device keeps its state; a relative path is resolved here.
            labels: Its first labels, by key.
            replace: Whether an id that is enrolled already shall get new credentials, which ends
                those that it has.

        Returns:
            What the device was enrolled as, and where its settings lie.

        Raises:
            FleetError: A name is impossible, the id is enrolled already, the fleet trusts no key
                yet, or the folder holds settings already or cannot be written.

        Example:
            ```python
            print(fleet.enroll("cam-7", group="cameras", folder="cam-7").config)
            ```
        """
        folder = Path(folder)
        check_unused(folder)
        key = make_key()
        request = (
            make_signing_request(key, device).decode()
            if self._connection.get("/v1/info", FleetInfo).broker_is_tls
            else ""
        )
        enrollment = self._connection.post(
            "/v1/devices",
            Enrollment,
            EnrollRequest(
                device=device,
                group=group,
                labels=dict(labels or {}),
                replace=replace,
                signing_request=request,
            ),
        )
        config = write_device_folder(folder, enrollment, key, Path(state_dir))
        return EnrolledDevice(device=device, group=group, config=config)
