"""List of models, and page of a model: releases, their contents, and the fleet's measurements."""

from collections import Counter
from typing import Any

from starlette.responses import Response

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.guard import Visit
from edgepack.fleet.dashboard.render import REPORT_POLICY, html
from edgepack.fleet.documents.samples import CaptureView
from edgepack.fleet.server.queries import FleetQueries

MAX_CAPTURES = 5


class ModelPages:
    """Pages about models."""

    def __init__(self, queries: FleetQueries) -> None:
        self._queries = queries

    def list(self, _: Visit) -> dict[str, Any]:
        """Return the models."""
        return {"models": self._queries.models()}

    def one(self, visit: Visit) -> dict[str, Any]:
        """Return a model, with a release in full: the newest by default."""
        model = visit.path("model")
        releases = self._queries.releases(model)
        if not releases:
            raise FleetError(f"the fleet holds no release of {model[:80]!r}")
        digests = [release.bundle.digest for release in releases]
        asked = visit.asked("release")
        digest = asked if asked in digests else digests[0]
        length_s, spans = self._queries.latency_over_time(digest)
        return {
            "model": model,
            "releases": releases,
            "shares": {share.digest: share for share in self._queries.shares(model)},
            "chosen": self._queries.release(digest),
            "length_s": length_s,
            "spans": spans,
            "captures": [_summarize(one) for one in self._queries.captures(model)[:MAX_CAPTURES]],
        }

    def report_page(self, visit: Visit) -> dict[str, Any]:
        """Return the page around the report of a build."""
        return {"chosen": self._queries.release(visit.path("digest"))}

    def report(self, visit: Visit) -> Response:
        """Return the report itself, shut in: see `REPORT_POLICY`."""
        return html(self._queries.report(visit.path("digest")), REPORT_POLICY)


def _summarize(capture: CaptureView) -> dict[str, Any]:
    """Return a request for samples with its devices counted by state, and by reason with one of
    the devices.
    """
    reasons = Counter(one.because for one in capture.devices if one.because)
    example = {one.because: one.device for one in reversed(capture.devices)}
    return {
        "asked": capture,
        "received": sum(one.received for one in capture.devices),
        "states": Counter(one.state or "ASKED" for one in capture.devices),
        "reasons": [(because, n, example[because]) for because, n in reasons.most_common(3)],
    }
