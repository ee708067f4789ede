"""`FleetClient`: what people and programs ask of a running fleet, and tell it to do."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from edgepack.agent.state.models import DEFAULT_STATE_DIR
from edgepack.bundle.archive import pack, read_head
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.forms import check_folder
from edgepack.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.client.connection import connect
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
from edgepack.fleet.documents.fleet import EventView, FleetInfo
from edgepack.fleet.documents.previews import PreviewRequest, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.releases import BundleHead, ReleaseView
from edgepack.fleet.documents.rollouts import (
    RollbackRequest,
    RolloutRequest,
    RolloutSettings,
    RolloutView,
    Selector,
)
from edgepack.fleet.enrolment.authority import make_key, make_signing_request
from edgepack.fleet.enrolment.device_folder import check_unused, write_device_folder

WATCH_S = 0.5
MAX_CERTIFICATE_BYTES = 64 * 1024
STOPPED = ("FINISHED", "ABORTED", "PAUSED")
"""States of a rollout in which nothing happens until a person says so."""


class FleetClient:
    """A running fleet: what can be asked of it, and what it can be told to do.

    All that the commands `edgepack fleet …` and `edgepack rollout …` do goes through it. Every
    method asks the fleet anew and waits for its answer, 60 s at most (15 min for an upload), so
    one client serves any number of threads.

    Args:
        url: Where the fleet serves. When not given: `EDGEPACK_FLEET_URL`, then
            `http://127.0.0.1:8600`.
        data: The fleet's folder, for the token that lies in it. When not given:
            `EDGEPACK_FLEET_DATA`, then `~/.local/share/edgepack/fleet`.
        token: The API's bearer token. When not given: `EDGEPACK_FLEET_TOKEN`, then the one in
            the fleet's folder.

    Raises:
        FleetError: The URL is none, or there is no token. Every method raises it, too: nobody
            serves there, or the fleet refuses; the message says why and what to try.

    Example:
        ```python
        from edgepack.fleet import FleetClient, RolloutSettings, Selector

        fleet = FleetClient()
        release = fleet.publish("model-1.2.0.edgepack")
        rollout = fleet.start_rollout(
            release, Selector(kind="group", group="cameras"), RolloutSettings(soak_s=2)
        )
        for rollout in fleet.watch_rollout(rollout.rollout):
            print(rollout.state, rollout.counts)
        ```
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        data: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        self._connection = connect(url, Path(data) if data is not None else None, token)

    def info(self) -> FleetInfo:
        """The fleet at a glance: devices, broker, message counters, bytes sent.

        Returns:
            The numbers as they are now.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            info = fleet.info()
            print(f"{info.online} of {info.devices} devices are online")
            ```
        """
        return self._connection.get("/v1/info", FleetInfo)

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
        kind = tuple[DeviceView, ...]
        return self._connection.get("/v1/devices", kind, group=group, where=where)

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
        request = make_signing_request(key, device).decode() if self.info().broker_is_tls else ""
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

    def releases(self) -> tuple[ReleaseView, ...]:
        """The releases that the fleet holds.

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

    def remove_release(self, release: str) -> ReleaseView:
        """Deletes a release that nothing points to; its name, version and counter stay taken.

        Args:
            release: `NAME@VERSION`, or the first digits of its digest.

        Returns:
            The release that is gone.

        Raises:
            FleetError: There is no such release, or it is in use: a device runs it or keeps it to
                go back to, a rollout of it is not over, or devices that join would get it.

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

    def publish(self, bundle: str | Path) -> ReleaseView:
        """Gives the fleet a bundle; one that it holds already stays as it is.

        Args:
            bundle: An `.edgepack` archive, or a bundle's folder.

        Returns:
            The release, for `start_rollout`.

        Raises:
            FleetError: There is no such bundle, no key that the fleet trusts signed it, it is
                damaged, the fleet holds another content under its name and version or its
                release counter, or the fleet's disk has no room for it.

        Example:
            ```python
            release = fleet.publish("model-1.3.0.edgepack")
            ```
        """
        bundle = _existing(bundle)
        if bundle.is_file():
            return self._connection.upload("/v1/releases", ReleaseView, bundle)
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            archive = Path(folder) / "bundle.edgepack"
            pack(bundle, archive)
            return self._connection.upload("/v1/releases", ReleaseView, archive)

    def preview_rollout(
        self, bundle: str | Path, to: Selector, settings: RolloutSettings | None = None
    ) -> RolloutPreview:
        """What a rollout would mean if it were started now; changes and uploads nothing.

        Args:
            bundle: An `.edgepack` archive, or a bundle's folder.
            to: The devices.
            settings: As for `start_rollout`.

        Returns:
            To how many devices, and to which for example, it adds the model, whose release it
            replaces, who has nothing to do, and who cannot take it.

        Raises:
            FleetError: There is no such bundle, no key that the fleet trusts signed it, the fleet
                holds another content under its name and version or its release counter, a number
                makes no sense, or no device is selected.

        Example:
            ```python
            cameras = Selector(kind="group", group="cameras")
            preview = fleet.preview_rollout("model-1.2.0.edgepack", cameras)
            print(preview.counts, preview.waves, preview.refusal)
            ```
        """
        chosen = msgspec.structs.asdict(settings or RolloutSettings())
        request = PreviewRequest(head=_read_head(_existing(bundle)), selector=to, **chosen)
        return self._connection.post("/v1/rollouts/preview", RolloutPreview, request)

    def start_rollout(
        self, release: ReleaseView, to: Selector, settings: RolloutSettings | None = None
    ) -> RolloutView:
        """Starts giving a release to devices, wave by wave.

        Args:
            release: What to roll out, from `publish` or `releases`.
            to: The devices.
            settings: Waves, soak, deadline and the failures that are let pass; the defaults of
                `RolloutSettings` when not given.

        Returns:
            The rollout with its devices, none of them addressed yet.

        Raises:
            FleetError: The waves do not grow to 100%, a number makes no sense, no device is
                selected, or one of them cannot take the release: it committed a higher release
                counter, or is in a rollout of this model that is not over.

        Example:
            ```python
            everybody = Selector(kind="all")
            fleet.start_rollout(release, everybody, RolloutSettings(waves="1,100%", soak_s=60))
            ```
        """
        chosen = msgspec.structs.asdict(settings or RolloutSettings())
        request = RolloutRequest(digest=release.bundle.digest, selector=to, **chosen)
        return self._connection.post("/v1/rollouts", RolloutView, request)

    def rollouts(self) -> tuple[RolloutView, ...]:
        """All rollouts, without their devices and latencies.

        Returns:
            The newest first.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            running = [view.rollout for view in fleet.rollouts() if view.state == "RUNNING"]
            ```
        """
        return self._connection.get("/v1/rollouts", tuple[RolloutView, ...])

    def rollout(self, rollout: str) -> RolloutView:
        """One rollout with every device's part in it and the latency of what it rolled out.

        Args:
            rollout: Its id, such as `r1`.

        Returns:
            The rollout as it stands.

        Raises:
            FleetError: There is no such rollout.

        Example:
            ```python
            failed = [p.device for p in fleet.rollout("r1").assignments if p.state == "FAILED"]
            ```
        """
        return self._connection.get(_path(rollout), RolloutView)

    def watch_rollout(self, rollout: str, *, every_s: float = WATCH_S) -> Iterator[RolloutView]:
        """Follows a rollout until it is finished, aborted or paused.

        Args:
            rollout: Its id, such as `r1`.
            every_s: How often the fleet is asked, seconds.

        Yields:
            The rollout as it stands, then again whenever something of it has changed; last of
            all as it stopped.

        Raises:
            FleetError: There is no such rollout, or the fleet does not answer any more.

        Example:
            ```python
            *_, last = fleet.watch_rollout("r1")
            assert last.state == "FINISHED", last.because
            ```
        """
        seen: RolloutView | None = None
        while True:
            view = self.rollout(rollout)
            if view != seen:
                yield view
            if view.state in STOPPED:
                return
            seen = view
            time.sleep(every_s)

    def pause_rollout(self, rollout: str) -> RolloutView:
        """Offers the release to nobody more; devices that are at it go on.

        Args:
            rollout: Its id, such as `r1`.

        Returns:
            The rollout as it stands now.

        Raises:
            FleetError: There is no such rollout, or it does not run.

        Example:
            ```python
            fleet.pause_rollout("r2")
            ```
        """
        return self._connection.post(_path(rollout, "pause"), RolloutView)

    def resume_rollout(self, rollout: str) -> RolloutView:
        """Goes on after a pause; the failures so far are accepted, further ones are not.

        Args:
            rollout: Its id, such as `r1`.

        Returns:
            The rollout as it stands now.

        Raises:
            FleetError: There is no such rollout, or it is not paused.

        Example:
            ```python
            fleet.resume_rollout("r2")
            ```
        """
        return self._connection.post(_path(rollout, "resume"), RolloutView)

    def preview_rollback(
        self, what: str, to: Selector | None = None, settings: RolloutSettings | None = None
    ) -> RollbackPreview:
        """What a rollback would mean if it were started now; changes nothing.

        Args:
            what: As for `rollback`.
            to: As for `rollback`.
            settings: As for `rollback`.

        Returns:
            How many devices, and which for example, go back to what, and which cannot.

        Raises:
            FleetError: There is no such rollout or release, or a number makes no sense.

        Example:
            ```python
            for part in fleet.preview_rollback("r2").parts:
                print(part.devices, part.to, part.because)
            ```
        """
        request = _rollback(what, to, settings)
        return self._connection.post("/v1/rollbacks/preview", RollbackPreview, request)

    def rollback(
        self, what: str, to: Selector | None = None, settings: RolloutSettings | None = None
    ) -> tuple[RolloutView, ...]:
        """Takes a release back: its devices go back to what they ran before it, wave by wave.

        A device goes back to the one release that it keeps for that. A rollout that is under way
        ends first.

        Args:
            what: A rollout, such as `r2`, or a release: `NAME@VERSION`, or the first digits of its
                digest.
            to: Of the devices that run a release, those that shall go back; all when not given.
                The devices of a rollout are its own.
            settings: Waves, soak, deadline and the failures that are let pass.

        Returns:
            The rollouts that were started: one for each release that devices go back to.

        Raises:
            FleetError: There is no such rollout or release, no device can go back, or a number
                makes no sense.

        Example:
            ```python
            for rollout in fleet.rollback("r2", settings=RolloutSettings(soak_s=2)):
                *_, last = fleet.watch_rollout(rollout.rollout)
                print(last.bundle.version, last.state)
            ```
        """
        request = _rollback(what, to, settings)
        return self._connection.post("/v1/rollbacks", tuple[RolloutView, ...], request)

    def abort_rollout(self, rollout: str) -> RolloutView:
        """Ends a rollout for good; devices that have not decided keep what they ran before.

        Devices that committed keep what they have: `rollback` takes it back.

        Args:
            rollout: Its id, such as `r1`.

        Returns:
            The rollout as it stands now.

        Raises:
            FleetError: There is no such rollout, or it was aborted already.

        Example:
            ```python
            fleet.abort_rollout("r1")
            ```
        """
        return self._connection.post(_path(rollout, "abort"), RolloutView)

    def events(self, *, after: int = 0, limit: int = 100) -> tuple[EventView, ...]:
        """What happened to devices and rollouts.

        Args:
            after: Only events with a greater id than this one.
            limit: At most so many; the fleet gives 1,000 at most.

        Returns:
            The oldest first; the last one's id is the next `after`.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            for event in fleet.events(after=12):
                print(event.device, event.to_state, event.because)
            ```
        """
        return self._connection.get("/v1/events", tuple[EventView, ...], after=after, limit=limit)


def _rollback(what: str, to: Selector | None, settings: RolloutSettings | None) -> RollbackRequest:
    chosen = msgspec.structs.asdict(settings or RolloutSettings())
    return RollbackRequest(what=what, selector=to, **chosen)


def _existing(bundle: str | Path) -> Path:
    bundle = Path(bundle)
    if not bundle.is_file() and not bundle.is_dir():
        raise FleetError(
            "there is no such bundle",
            found_in=str(bundle),
            remedy="edgepack build MODEL.onnx --profile cpu --key release.key -o FILE.edgepack",
        )
    return bundle


def _read_head(bundle: Path) -> BundleHead:
    if bundle.is_file():
        head = read_head(bundle)
        return BundleHead(manifest=head.manifest_bytes, signature=head.signature)
    check_folder(bundle)
    manifest = read_bounded(bundle / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    return BundleHead(
        manifest=manifest, signature=read_bounded(bundle / SIGNATURE_FILE, MAX_SIGNATURE_BYTES)
    )


def _path(rollout: str, action: str = "") -> str:
    path = f"/v1/rollouts/{quote(rollout, safe='')}"
    return f"{path}/{action}" if action else path
