"""Methods of a running fleet for rollouts."""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

import msgspec
from sqlalchemy.orm import Session

from edgepack.fleet.database import (
    unsent,
)
from edgepack.fleet.database.devices import Publication
from edgepack.fleet.database.schema import RolloutRow
from edgepack.fleet.documents.previews import PreviewRequest, RollbackPreview, RolloutPreview
from edgepack.fleet.documents.rollouts import (
    AssignmentView,
    RollbackRequest,
    RolloutRequest,
    RolloutView,
)
from edgepack.fleet.releases.listing import (
    check_listed,
)
from edgepack.fleet.releases.publish import read_head
from edgepack.fleet.rollouts import execution, membership, starting, status
from edgepack.fleet.rollouts.retry import retry
from edgepack.fleet.rollouts.rollback import rollback, show_rollback
from edgepack.fleet.server.parts import Parts


class Act(Protocol):
    """Changes a rollout, and returns the messages to devices."""

    def __call__(
        self, session: Session, rollout: RolloutRow, *, now: float
    ) -> Iterable[Publication] | None:
        """Apply the change."""


class RolloutMethods(Parts, frozen=True, kw_only=True):
    """Methods for rollouts."""

    def preview_rollout(self, request: PreviewRequest) -> RolloutPreview:
        """Return the preview of a rollout.

        Raises:
            EdgepackError: No trusted key signed the bundle, or see
                `edgepack.fleet.rollouts.membership.show_preview`.
        """
        bundle, manifest = read_head(request.head, self.trust)
        with self.store.reading() as session:
            return membership.show_preview(session, bundle, request.selector, request, manifest)

    def start_rollout(self, request: RolloutRequest) -> RolloutView:
        """Start a rollout.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.starting.start`.
        """
        check = partial(check_listed, self.repository)
        name = starting.start(self.store, request, by=self.by, check=check)
        self.inbox.wake()
        return self.rollout(name)

    def list_rollouts(self) -> tuple[RolloutView, ...]:
        """Return all rollouts, the newest first."""
        with self.store.reading() as session:
            return status.list_rollouts(session)

    def rollout(self, name: str) -> RolloutView:
        """Return a rollout with its devices."""
        with self.store.reading() as session:
            return self.with_problem(status.show_rollout(session, execution.find(session, name)))

    def with_problem(self, view: RolloutView) -> RolloutView:
        """Return a rollout with the reason why its release cannot be sent, if any."""
        problem = self.releases.problems.get(view.bundle.digest, "")
        return msgspec.structs.replace(view, release_problem=problem)

    def rollout_devices(
        self, name: str, state: str, after: str, limit: int
    ) -> tuple[AssignmentView, ...]:
        """Return a page of a rollout's devices, all or with assignments in a state."""
        with self.store.reading() as session:
            rollout = execution.find(session, name)
            return status.list_assignments(session, rollout, state=state, after=after, limit=limit)

    def pause(self, name: str) -> RolloutView:
        """Stop offering."""
        return self._act(name, execution.pause)

    def resume(self, name: str) -> RolloutView:
        """Resume a paused rollout."""
        return self._act(name, execution.resume)

    def approve(self, name: str) -> RolloutView:
        """Approve the next wave."""
        return self._act(name, execution.approve)

    def retry(self, name: str) -> RolloutView:
        """Offer the release again to failed devices."""
        return self._act(name, retry)

    def abort(self, name: str) -> RolloutView:
        """End a rollout."""
        return self._act(name, partial(execution.abort, because="aborted by a person"))

    def preview_rollback(self, request: RollbackRequest) -> RollbackPreview:
        """Return the preview of a rollback.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.rollback.show_rollback`.
        """
        with self.store.reading() as session:
            return show_rollback(session, request, self.repository.is_listed)

    def rollback(self, request: RollbackRequest) -> tuple[RolloutView, ...]:
        """Take a release back.

        Raises:
            FleetError: See `edgepack.fleet.rollouts.rollback.rollback`.
        """
        with self.store.transaction(self.by) as session:
            started, publications = rollback(
                session, request, self.store.now(), self.repository.is_listed
            )
            views = tuple(status.show_rollout(session, rollout) for rollout in started)
            unsent.add(session, publications)
        self.inbox.wake()
        return views

    def _act(self, name: str, act: Act) -> RolloutView:
        with self.store.transaction(self.by) as session:
            rollout = execution.find(session, name)
            publications = act(session, rollout, now=self.store.now())
            view = status.show_rollout(session, rollout)
            unsent.add(session, publications or ())
        self.inbox.wake()
        return view
