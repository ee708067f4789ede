"""Methods of `FleetClient` for latency."""

from collections.abc import Sequence
from typing import get_args

from edgepack.errors import FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.latency import Dimension, LatencyQuestion, LatencyReport

_DEFAULT = LatencyQuestion()


class LatencyMethods:
    """The method of a `FleetClient` that is about latency."""

    _connection: Connection

    def latency(
        self,
        model: str = "",
        *,
        group: str = "",
        where: str = "",
        since: float | None = None,
        until: float | None = None,
        by: Sequence[Dimension] = _DEFAULT.by,
    ) -> LatencyReport:
        """Return latency of real inferences over any devices and any time.

        Latency is kept by minute for a day, by hour for 30 days, by day for 400 days; the shortest
        sums that cover the time are read.

        Args:
            model: Of this model; "" means all.
            group: Of devices that were in this group; "" means all.
            where: Selection over `model`, `version`, `variant`, `provider`, `hardware_class`,
                `group` and `rollout`, such as `provider!=CPUExecutionProvider`.
            since: Seconds since the epoch (UTC); None means a day before `until`.
            until: Likewise; None means now.
            by: Dimensions of the result: `model`, `version`, `variant`, `provider`,
                `hardware_class`, `group`, `rollout`, and `time` for periods.

        Returns:
            Percentiles over all inferences of each part, never averaged.

        Raises:
            FleetError: Nobody serves there, the token is wrong, or the question makes no sense.

        Example:
            ```python
            for part in fleet.latency("defects", by=["hardware_class", "version"]).parts:
                print(part.hardware_class, part.version, part.p95_ms)
            ```
        """
        if unknown := sorted(set(by) - set(get_args(Dimension))):
            raise FleetError(
                f"latency cannot be grouped by {unknown[0]!r}",
                found_in=f"dimensions: {', '.join(get_args(Dimension))}",
            )
        times = {"since": since, "until": until}
        query = {name: repr(float(at)) for name, at in times.items() if at is not None}
        return self._connection.get(
            "/v1/latency",
            LatencyReport,
            model=model,
            group=group,
            where=where,
            by=",".join(by),
            **query,
        )
