"""Methods of `FleetClient` for rollouts."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from edgepack.fleet.client.connection import Connection, ask_patiently
from edgepack.fleet.client.releases import existing, read_bundle_head
from edgepack.fleet.documents.previews import PreviewRequest, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    RollbackRequest,
    RolloutRequest,
    RolloutSettings,
    RolloutView,
    Selector,
)

WATCH_S = 0.5
STOPPED = ("FINISHED", "ABORTED", "PAUSED")
"""States of a rollout in which nothing happens until a person says so."""


class RolloutMethods:
    """The methods of a `FleetClient` that are about rollouts."""

    _connection: Connection

    def preview_rollout(
        self, bundle: str | Path, to: Selector, settings: RolloutSettings | None = None
    ) -> RolloutPreview:
        """Return the preview of a rollout; change and upload nothing.

        Args:
            bundle: An `.edgepack` archive, or a bundle's folder.
            to: The devices.
            settings: As for `start_rollout`.

        Returns:
            Numbers and examples of devices that get the model for the first time, replace a
            release, need no change, or cannot install the release.

        Raises:
            FleetError: The bundle does not exist or is not signed by a trusted key, the fleet holds
                another content under the same name and version or release counter, a number is
                invalid, or no device is selected.

        Example:
            ```python
            cameras = Selector(kind="group", group="cameras")
            preview = fleet.preview_rollout("model-1.2.0.edgepack", cameras)
            print(preview.counts, preview.waves, preview.refusal)
            ```
        """
        chosen = msgspec.structs.asdict(settings or RolloutSettings())
        request = PreviewRequest(head=read_bundle_head(existing(bundle)), selector=to, **chosen)
        return self._connection.post("/v1/rollouts/preview", RolloutPreview, request)

    def start_rollout(
        self, release: ReleaseView, to: Selector, settings: RolloutSettings | None = None
    ) -> RolloutView:
        """Start giving a release to devices, wave by wave.

        Args:
            release: The release, from `publish` or `releases`.
            to: The devices.
            settings: Waves, soak, deadline and the failures that are tolerated; the defaults of
                `RolloutSettings` when not given.

        Returns:
            The rollout with its devices, all of them still waiting.

        Raises:
            FleetError: The waves do not grow to 100%, a number makes no sense, no device is
                selected, or a device cannot install the release: the device committed a higher
                release counter, or is in an unfinished rollout of this model.

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
        """Return all rollouts, without their devices and latencies.

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
        """Return a rollout with every device's assignment and the latency of the release.

        Args:
            rollout: The rollout's id, such as `r1`.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist.

        Example:
            ```python
            failed = [p.device for p in fleet.rollout("r1").assignments if p.state == "FAILED"]
            ```
        """
        return self._connection.get(_path(rollout), RolloutView)

    def rollout_devices(self, rollout: str, *, state: str = "") -> Iterator[AssignmentView]:
        """Yield all devices of a rollout, requested page by page.

        Args:
            rollout: The rollout's id, such as `r1`.
            state: Only assignments in this state, such as `FAILED`; "" means all.

        Yields:
            Each device's assignment.

        Raises:
            FleetError: The rollout does not exist, or the fleet does not answer.

        Example:
            ```python
            for part in fleet.rollout_devices("r1", state="FAILED"):
                print(part.device, part.because)
            ```
        """
        path = _path(rollout, "devices")
        return self._connection.pages(path, AssignmentView, lambda part: part.device, state=state)

    def watch_rollout(self, rollout: str, *, every_s: float = WATCH_S) -> Iterator[RolloutView]:
        """Watch a rollout until the rollout is finished, aborted or paused.

        Args:
            rollout: The rollout's id, such as `r1`.
            every_s: How often the fleet is asked, seconds.

        Yields:
            The rollout's current state, then each changed state; the last item is the final state.

        Raises:
            FleetError: The rollout does not exist, nobody serves there, or the fleet did not answer
                for 10 minutes.

        Example:
            ```python
            *_, last = fleet.watch_rollout("r1")
            assert last.state == "FINISHED", last.because
            ```
        """
        view = self.rollout(rollout)
        yield view
        while view.state not in STOPPED:
            time.sleep(every_s)
            seen, view = view, ask_patiently(lambda: self.rollout(rollout))
            if view != seen:
                yield view

    def pause_rollout(self, rollout: str) -> RolloutView:
        """Offer the release to no further device; devices with a running installation continue.

        Args:
            rollout: The rollout's id, such as `r1`.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist or is not running.

        Example:
            ```python
            fleet.pause_rollout("r2")
            ```
        """
        return self._connection.post(_path(rollout, "pause"), RolloutView)

    def resume_rollout(self, rollout: str) -> RolloutView:
        """Resume a paused rollout; accept the failures so far, but no further failure.

        Args:
            rollout: The rollout's id, such as `r1`.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist or is not paused.

        Example:
            ```python
            fleet.resume_rollout("r2")
            ```
        """
        return self._connection.post(_path(rollout, "resume"), RolloutView)

    def approve_rollout(self, rollout: str) -> RolloutView:
        """Approve the next wave of a rollout whose waves need approval.

        Args:
            rollout: The rollout's id, such as `r1`.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist or waits for no approval.

        Example:
            ```python
            if fleet.rollout("r1").waits_for:
                fleet.approve_rollout("r1")
            ```
        """
        return self._connection.post(_path(rollout, "approve"), RolloutView)

    def retry_rollout(self, rollout: str) -> RolloutView:
        """Offer the release again to the devices that failed or stayed silent.

        Args:
            rollout: The id, such as `r1`, of a running or finished rollout.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist or was aborted, or no device can try again.

        Example:
            ```python
            rollout = fleet.rollout("r1")
            if rollout.counts.get("FAILED"):
                fleet.retry_rollout("r1")
            ```
        """
        return self._connection.post(_path(rollout, "retry"), RolloutView)

    def preview_rollback(
        self, what: str, to: Selector | None = None, settings: RolloutSettings | None = None
    ) -> RollbackPreview:
        """Return the preview of a rollback; change nothing.

        Args:
            what: As for `rollback`.
            to: As for `rollback`.
            settings: As for `rollback`.

        Returns:
            Numbers and examples of devices by the release to go back to, and of devices that cannot
            go back.

        Raises:
            FleetError: The rollout or release does not exist, or a number is invalid.

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
        """Take a release back: its devices go back to their previous release, wave by wave.

        Each device goes back to the single release that the device keeps for this purpose. A
        rollout that is under way ends first.

        Args:
            what: A rollout, such as `r2`, or a release: `NAME@VERSION`, or the first digits of its
                digest.
            to: Devices to go back, among the devices that run a release; all when not given. The
                devices of a rollout are its own.
            settings: Waves, soak, deadline and the failures that are tolerated.

        Returns:
            The started rollouts, each for a release that devices go back to.

        Raises:
            FleetError: The rollout or release does not exist, no device can go back, or a number is
                invalid.

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
        """End a rollout for good; undecided devices keep their previous release.

        Devices that committed keep the release: `rollback` takes the release back.

        Args:
            rollout: The rollout's id, such as `r1`.

        Returns:
            The rollout's current state.

        Raises:
            FleetError: The rollout does not exist or was aborted already.

        Example:
            ```python
            fleet.abort_rollout("r1")
            ```
        """
        return self._connection.post(_path(rollout, "abort"), RolloutView)


def _rollback(what: str, to: Selector | None, settings: RolloutSettings | None) -> RollbackRequest:
    chosen = msgspec.structs.asdict(settings or RolloutSettings())
    return RollbackRequest(what=what, selector=to, **chosen)


def _path(rollout: str, action: str = "") -> str:
    path = f"/v1/rollouts/{quote(rollout, safe='')}"
    return f"{path}/{action}" if action else path
