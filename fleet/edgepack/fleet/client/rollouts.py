"""Methods of `FleetClient` for rollouts."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec

from edgepack.fleet.client.connection import Connection
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
        request = PreviewRequest(head=read_bundle_head(existing(bundle)), selector=to, **chosen)
        return self._connection.post("/v1/rollouts/preview", RolloutPreview, request)

    def start_rollout(
        self, release: ReleaseView, to: Selector, settings: RolloutSettings | None = None
    ) -> RolloutView:
        """Start giving a release to devices, wave by wave.

        Args:
            release: What to roll out, from `publish` or `releases`.
            to: The devices.
            settings: Waves, soak, deadline and the failures that are tolerated; the defaults of
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
        """Return one rollout with every device's part in it and the latency of what it rolled out.

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

    def rollout_devices(self, rollout: str, *, state: str = "") -> Iterator[AssignmentView]:
        """Return a rollout's devices, however many, as they are asked for page by page.

        Args:
            rollout: Its id, such as `r1`.
            state: Only those whose part is in this state, such as `FAILED`; "" means all.

        Yields:
            Each device's part in it.

        Raises:
            FleetError: There is no such rollout, or the fleet does not answer.

        Example:
            ```python
            for part in fleet.rollout_devices("r1", state="FAILED"):
                print(part.device, part.because)
            ```
        """
        path = _path(rollout, "devices")
        return self._connection.pages(path, AssignmentView, lambda part: part.device, state=state)

    def watch_rollout(self, rollout: str, *, every_s: float = WATCH_S) -> Iterator[RolloutView]:
        """Follow a rollout until it is finished, aborted or paused.

        Args:
            rollout: Its id, such as `r1`.
            every_s: How often the fleet is asked, seconds.

        Yields:
            The rollout as it stands, then again whenever something of it has changed; last of all
            as it stopped.

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
        """Offer the release to nobody more; devices that are at it continue.

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
        """Resume a paused rollout; accept the failures so far, but no further failure.

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

    def approve_rollout(self, rollout: str) -> RolloutView:
        """Approve the next wave of a rollout whose waves wait for a person.

        Args:
            rollout: Its id, such as `r1`.

        Returns:
            The rollout as it stands now.

        Raises:
            FleetError: There is no such rollout, or it waits for nobody's approval.

        Example:
            ```python
            if fleet.rollout("r1").waits_for:
                fleet.approve_rollout("r1")
            ```
        """
        return self._connection.post(_path(rollout, "approve"), RolloutView)

    def retry_rollout(self, rollout: str) -> RolloutView:
        """Offer the release once more to the devices that failed it or stayed silent.

        Args:
            rollout: Its id, such as `r1`; it may be finished.

        Returns:
            The rollout as it stands now.

        Raises:
            FleetError: There is no such rollout, it was aborted, or no device of it can try again.

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
        """Take a release back: its devices go back to what they ran before it, wave by wave.

        A device goes back to the one release that it keeps for that. A rollout that is under way
        ends first.

        Args:
            what: A rollout, such as `r2`, or a release: `NAME@VERSION`, or the first digits of its
                digest.
            to: Of the devices that run a release, those that shall go back; all when not given. The
                devices of a rollout are its own.
            settings: Waves, soak, deadline and the failures that are tolerated.

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
        """End a rollout for good; devices that have not decided keep what they ran before.

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


def _rollback(what: str, to: Selector | None, settings: RolloutSettings | None) -> RollbackRequest:
    chosen = msgspec.structs.asdict(settings or RolloutSettings())
    return RollbackRequest(what=what, selector=to, **chosen)


def _path(rollout: str, action: str = "") -> str:
    path = f"/v1/rollouts/{quote(rollout, safe='')}"
    return f"{path}/{action}" if action else path
