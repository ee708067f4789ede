"""Actions on rollouts, first with a preview, and the request for a device's log."""

from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import RedirectResponse, Response

from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.dashboard import start_form
from edgepack.fleet.dashboard.guard import Visit
from edgepack.fleet.dashboard.render import link, page
from edgepack.fleet.dashboard.start_form import fill_in, read_selector, read_settings
from edgepack.fleet.documents.logs import LogRequest
from edgepack.fleet.documents.rollouts import (
    RollbackRequest,
    RolloutRequest,
    RolloutView,
)
from edgepack.fleet.server.fleet import Fleet
from edgepack.fleet.server.queries import FleetQueries
from edgepack.text import counted

MAX_GROUPS = 200
_ROLLBACK_WAVES = "1,100%"


class Acts:
    """Starts, pauses, resumes, aborts and rolls back rollouts; asks for logs."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries

    def ask_start(self, visit: Visit) -> Response:
        """Return the form of a new rollout and, once complete, the preview."""
        return self._start_page(visit, dict(visit.request.query_params))

    def start(self, visit: Visit) -> Response:
        """Start a rollout."""
        try:
            words = fill_in(visit.form)
            request = RolloutRequest(
                digest=words["release"],
                selector=read_selector(words),
                **msgspec.structs.asdict(read_settings(words)),
            )
            started = self._acting(visit).start_rollout(request)
        except EdgepackError as error:
            return self._start_page(visit, visit.form, error)
        return _to(started)

    def ask(self, visit: Visit) -> Response:
        """Return the page with the effect of an action."""
        return self._act_page(visit)

    def do(self, visit: Visit) -> Response:
        """Do the action."""
        fleet, name, act = self._acting(visit), visit.path("name"), visit.path("act")
        try:
            match act:
                case "pause":
                    fleet.pause(name)
                case "resume":
                    fleet.resume(name)
                case "approve":
                    fleet.approve(name)
                case "retry":
                    fleet.retry(name)
                case "abort":
                    fleet.abort(name)
                case "rollback":
                    started = fleet.rollback(_rollback(name, visit.form))
                    return _to(started[0]) if started else _to(self._queries.rollout(name))
                case _:
                    raise FleetError(f"a rollout has no action {act[:40]!r}")
        except EdgepackError as error:
            return self._act_page(visit, error)
        return _to(self._queries.rollout(name))

    def request_log(self, visit: Visit) -> Response:
        """Ask a device for its log."""
        device = visit.path("device")
        self._acting(visit).request_log(device, LogRequest())
        return RedirectResponse(link(f"/devices/{quote(device, safe='')}") + "#log", 303)

    def _acting(self, visit: Visit) -> Fleet:
        """Return the fleet with the actor of the request."""
        return msgspec.structs.replace(self._queries.fleet, by=visit.actor.name)

    def _act_page(self, visit: Visit, error: EdgepackError | None = None) -> Response:
        name, act = visit.path("name"), visit.path("act")
        rollout = self._queries.rollout(name)
        means: tuple[str, ...] = ()
        values: dict[str, Any] = {"preview": None, "waves": ""}
        if act == "rollback":
            waves = visit.form.get("waves") or visit.asked("waves") or _ROLLBACK_WAVES
            values["waves"] = waves
            try:
                request = _rollback(name, {"waves": waves})
                values["preview"] = self._queries.fleet.preview_rollback(request)
            except EdgepackError as refusal:
                error = error or refusal
        elif act in MEANINGS:
            means = MEANINGS[act](rollout)
        else:
            raise FleetError(f"a rollout has no action {act[:40]!r}")
        return page(
            "act",
            status=422 if error else 200,
            who=visit.who,
            here="rollouts",
            rollout=rollout,
            act=act,
            means=means,
            error=error,
            **values,
        )

    def _start_page(
        self, visit: Visit, given: dict[str, str], error: EdgepackError | None = None
    ) -> Response:
        preview, words = None, fill_in(given)
        releases, stopped = self._queries.releases(), self._queries.stopped_releases()
        if not words["release"]:
            fit = (one.bundle.digest for one in releases if one.bundle.digest not in stopped)
            words["release"] = next(fit, "")
        if given.get("look") and error is None:
            try:
                preview = self._queries.preview(
                    words["release"], read_selector(words), read_settings(words)
                )
            except EdgepackError as refusal:
                error = refusal
        return page(
            "start",
            status=422 if error else 200,
            who=visit.who,
            here="rollouts",
            words=words,
            form=start_form,
            releases=releases,
            stopped=stopped,
            groups=self._queries.fleet.groups()[:MAX_GROUPS],
            preview=preview,
            error=error,
        )


def _to(rollout: RolloutView) -> Response:
    return RedirectResponse(link(f"/rollouts/{rollout.rollout}"), 303)


def _rollback(name: str, form: dict[str, str]) -> RollbackRequest:
    return RollbackRequest(what=name, waves=form.get("waves", _ROLLBACK_WAVES))


def _sum(rollout: RolloutView, *states: str) -> int:
    return sum(rollout.counts.get(state, 0) for state in states)


def _waiting(rollout: RolloutView) -> str:
    return counted(_sum(rollout, "WAITING"), "device that waits", "devices that wait")


def _keeping(rollout: RolloutView) -> str:
    committed = _sum(rollout, "COMMITTED")
    return counted(committed, "device that committed it keeps", "devices that committed it keep")


def _pause(rollout: RolloutView) -> tuple[str, ...]:
    under_way = counted(
        _sum(rollout, "OFFERED", "WORKING"),
        "device that has it under way goes",
        "devices that have it under way go",
    )
    return (
        f"{_waiting(rollout)} will not be offered the release.",
        f"{under_way} on.",
        f"{_keeping(rollout)} it. It can be resumed at any time.",
    )


def _resume(rollout: RolloutView) -> tuple[str, ...]:
    index = max(rollout.wave - 1, 0)
    wave = rollout.wave_counts[index] if index < len(rollout.wave_counts) else {}
    failed = wave.get("FAILED", 0) + wave.get("SILENT", 0)
    if rollout.waits_reason == "evidence":
        return (
            f"Wave {rollout.wave + 1} of {rollout.wave_count} begins although too few devices "
            f"measured wave {rollout.wave}.",
            "The gates still stop the rollout when enough devices measure a breach.",
        )
    return (
        f"{counted(failed, 'failure')} of wave {rollout.wave} so far "
        f"{'is' if failed == 1 else 'are'} accepted; any further one counts.",
        f"{_waiting(rollout)} will be offered the release, wave by wave.",
    )


def _abort(rollout: RolloutView) -> tuple[str, ...]:
    undecided = counted(
        _sum(rollout, "OFFERED", "WORKING", "SILENT"),
        "device that has not committed it is told to stay with what it",
        "devices that have not committed it are told to stay with what they",
    )
    return (
        f"{undecided} ran before.",
        f"{_waiting(rollout)} will never be offered it.",
        f"{_keeping(rollout)} it; a rollback takes it back.",
        "An aborted rollout cannot be resumed.",
    )


def _approve(rollout: RolloutView) -> tuple[str, ...]:
    following = rollout.wave_counts[rollout.wave : rollout.wave + 1]
    count = sum(sum(wave.values()) for wave in following)
    return (
        f"Wave {rollout.wave + 1} of {rollout.wave_count}, {counted(count, 'device')}, may begin "
        "once the one before it is over and its gates hold.",
    )


def _retry(rollout: RolloutView) -> tuple[str, ...]:
    return (
        f"{counted(_sum(rollout, 'FAILED', 'SILENT'), 'device')} that failed or stayed silent "
        "will be offered the release once more.",
        f"{_keeping(rollout)} it.",
    )


MEANINGS = {
    "pause": _pause,
    "resume": _resume,
    "approve": _approve,
    "retry": _retry,
    "abort": _abort,
}
