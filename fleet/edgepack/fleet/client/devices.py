"""Methods of `FleetClient` for devices."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.devices import (
    DeviceChange,
    DeviceDetails,
    DeviceRemoval,
    DeviceView,
    GroupView,
    RemovedDevice,
)
from edgepack.fleet.documents.logs import LogRequest, LogView
from edgepack.text import natural_order


class DeviceMethods:
    """The methods of a `FleetClient` that are about devices."""

    _connection: Connection

    def devices(self, group: str = "", *, where: str = "") -> tuple[DeviceView, ...]:
        """Return the enrolled devices with release, provider and state.

        Args:
            group: Only the devices of this group; "" means all.
            where: Selection over labels and facts, such as `soc=QCS6490 and site=berlin`; "" means
                all.

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
        """Return the groups of devices.

        Returns:
            By name, each with its number of devices and of online devices.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            print({group.group: group.devices for group in fleet.groups()})
            ```
        """
        return self._connection.get("/v1/groups", tuple[GroupView, ...])

    def device(self, device: str) -> DeviceDetails:
        """Return an enrolled device.

        Args:
            device: Its id.

        Returns:
            The device's facts, releases, providers, state and rollouts.

        Raises:
            FleetError: No device of that id is enrolled.

        Example:
            ```python
            print(*(model.state for model in fleet.device("cam-7").models))
            ```
        """
        return self._connection.get(f"/v1/devices/{quote(device, safe='')}", DeviceDetails)

    def request_log(self, device: str, *, lines: int = 200, valid_s: float = 3600.0) -> LogView:
        """Ask a device for the last lines of its agent's log; its own settings may forbid that.

        Args:
            device: Its id.
            lines: Lines, at most.
            valid_s: Seconds after which the device sends no line.

        Returns:
            The request, which `device_log` shows with the lines once the device has sent them.

        Raises:
            FleetError: No device of that id is enrolled, or the token is not an operator's.

        Example:
            ```python
            print(fleet.request_log("cam-1", lines=50).state)
            ```
        """
        path = f"/v1/devices/{quote(device, safe='')}/log"
        return self._connection.post(path, LogView, LogRequest(lines=lines, valid_s=valid_s))

    def device_log(self, device: str) -> LogView:
        """Return the log lines of a device, by the last request.

        Args:
            device: Its id.

        Returns:
            The state of the request, and the lines.

        Raises:
            FleetError: No device of that id is enrolled, or the token is not an operator's.

        Example:
            ```python
            print(*fleet.device_log("cam-1").lines)
            ```
        """
        return self._connection.get(f"/v1/devices/{quote(device, safe='')}/log", LogView)

    def move_devices(self, devices: Sequence[str], group: str) -> tuple[DeviceView, ...]:
        """Move devices to another group.

        Running assignments continue; afterwards the devices get the releases of the new group.

        Args:
            devices: Their ids.
            group: Their new group.

        Returns:
            The devices after the change.

        Raises:
            FleetError: A device is not enrolled, or the group's name is invalid.

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
        """Set labels of devices, for selection.

        Args:
            devices: Their ids.
            labels: By key; an empty value takes a label away.

        Returns:
            The devices after the change.

        Raises:
            FleetError: A device is not enrolled, or a key or value is invalid.

        Example:
            ```python
            fleet.label_devices(["cam-1", "cam-2"], {"site": "berlin"})
            print([device.device for device in fleet.devices(where="site=berlin")])
            ```
        """
        change = DeviceChange(devices=tuple(devices), labels=dict(labels))
        return self._connection.post("/v1/devices/change", tuple[DeviceView, ...], change)

    def remove_devices(self, devices: Sequence[str]) -> tuple[RemovedDevice, ...]:
        """Remove devices from the fleet: ignore their messages and revoke their certificates.

        `revocations` writes the list of revoked certificates for the broker.

        Args:
            devices: Their ids.

        Returns:
            The devices, each with the certificate that was revoked.

        Raises:
            FleetError: A device is not enrolled.

        Example:
            ```python
            fleet.remove_devices(["cam-7"])
            ```
        """
        removal = DeviceRemoval(devices=tuple(devices))
        return self._connection.post("/v1/devices/remove", tuple[RemovedDevice, ...], removal)
