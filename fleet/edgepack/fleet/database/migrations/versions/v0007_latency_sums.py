"""Latency is summed up by minute, hour and day; windows that are there already are added up."""

import json
import sys
from collections import defaultdict
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_LENGTHS_S = (60, 3600, 86400)
_REMEMBERED = 32
_LONG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
# The newest rollout that gave a device the release, 0 where none did.
_WINDOWS = """
SELECT t.device, t.digest, t.variant, t.provider, t.is_simulator, t.hardware_class,
    t.window_start, t.received_at, t.failures, t.histogram, coalesce(d.device_group, ''),
    coalesce((SELECT max(r.number) FROM assignments a JOIN rollouts r ON a.rollout = r.number
        WHERE a.device = t.device AND r.digest = t.digest), 0)
FROM telemetry t LEFT JOIN devices d ON d.id = t.device ORDER BY t.id
"""


def upgrade() -> None:
    """Makes the tables, fills them, and drops the windows."""
    sums = op.create_table(
        "latency",
        sa.Column("rollout", sa.Integer, primary_key=True, autoincrement=False),
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("digest", "device_group", "hardware_class", "provider", "variant")
        ),
        sa.Column("is_simulator", sa.Boolean, primary_key=True),
        sa.Column("length_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("start", _LONG, primary_key=True, autoincrement=False),
        sa.Column("failures", _LONG, nullable=False),
        sa.Column("histogram", sa.Text, nullable=False),
    )
    op.create_index("latency_by_age", "latency", ["length_s", "start"])
    sources = op.create_table(
        "latency_sources",
        *(
            sa.Column(name, sa.String, primary_key=True)
            for name in ("device", "digest", "variant", "provider")
        ),
        sa.Column("rollout", sa.Integer, nullable=False),
        sa.Column("hardware_class", sa.String, nullable=False),
        sa.Column("is_simulator", sa.Boolean, nullable=False),
        sa.Column("told_at", sa.Double, nullable=False),
        sa.Column("windows", sa.Text, nullable=False),
    )
    op.create_index(
        "latency_sources_by_kind",
        "latency_sources",
        ["rollout", "digest", "is_simulator", "hardware_class", "provider", "variant"],
    )
    _fill(sums, sources)
    op.drop_table("telemetry")


def _fill(sums: sa.Table, sources: sa.Table) -> None:
    added: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(
        lambda: (
            {"counts": defaultdict(int), "sum_ms": 0.0, "min_ms": sys.float_info.max}
            | {"max_ms": 0.0, "count": 0, "growth": 1.05, "failures": 0}
        )
    )
    told: dict[tuple[str, ...], dict[str, Any]] = {}
    windows: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in op.get_bind().execute(sa.text(_WINDOWS)):
        device, digest, variant, provider, is_simulator, hardware_class = row[:6]
        start, received_at, failures, text, group, rollout = row[6:]
        key = (device, digest, variant, provider)
        windows[key].append(start)
        told[key] = {"rollout": rollout, "hardware_class": hardware_class}
        told[key] |= {"is_simulator": bool(is_simulator), "told_at": received_at}
        histogram = json.loads(text)
        kind = (rollout, digest, group, hardware_class, provider, variant, bool(is_simulator))
        for length_s in _LENGTHS_S:
            whole = added[*kind, length_s, int(received_at // length_s * length_s)]
            _merge(whole, histogram, failures)
    names = [column.name for column in sums.columns][:9]
    op.bulk_insert(
        sums,
        [
            dict(zip(names, key, strict=True))
            | {"failures": whole.pop("failures"), "histogram": json.dumps(whole)}
            for key, whole in added.items()
        ],
    )
    names = [column.name for column in sources.columns][:4]
    op.bulk_insert(
        sources,
        [
            dict(zip(names, key, strict=True))
            | said
            | {"windows": json.dumps(windows[key][-_REMEMBERED:])}
            for key, said in told.items()
        ],
    )


def _merge(whole: dict[str, Any], part: dict[str, Any], failures: int) -> None:
    whole["failures"] += failures
    if part["count"]:
        for index, number in part["counts"].items():
            whole["counts"][index] += number
        whole["count"] += part["count"]
        whole["sum_ms"] += part["sum_ms"]
        whole["min_ms"] = min(whole["min_ms"], part["min_ms"])
        whole["max_ms"] = max(whole["max_ms"], part["max_ms"])
