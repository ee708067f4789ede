"""Everything of a fleet that expires: metadata, certificates and tokens, with the remedy of each.

A person is warned 30 days ahead. Automatically renewed items are reported when their renewal is
overdue: the timestamp lives 3 days, and always expires soon.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec
from cryptography import x509

from edgepack.bundle.certificates import UNREADABLE
from edgepack.errors import EdgepackError
from edgepack.fleet.broker.link import Link
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.database import access, certificates
from edgepack.fleet.database.store import Store
from edgepack.fleet.enrolment.authority import CA_FILE, controller_certificates
from edgepack.fleet.repository.lifetimes import DAY_S, WARNED_DAYS, life_days
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.text import counted
from edgepack.trust.roles import SNAPSHOT, TIMESTAMP

Kind = Literal[
    "metadata", "authority", "controller", "broker", "api", "device", "token", "unreadable"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
OVERDUE = 0.25
"""What renews itself at half of its life, or after two thirds, has more than this share left."""
DEVICE_OVERDUE = 1 / 6
KEEP_S = 15.0
"""So long the last look counts: pages and `/metrics` ask again and again."""
MAX_NAMED = 5


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Expiry: a certificate or metadata that expires soon, or has expired.

    Attributes:
        kind: Kind of the item.
        title: With its name, as a sentence begins.
        expires_at: Seconds since the epoch.
        remedy: The command for the renewal.
        warned_days: How many days before people are warned.
    """

    kind: Kind
    title: str
    expires_at: float
    remedy: str
    warned_days: float = WARNED_DAYS

    def describe(self, now: float) -> str:
        """Return the warning: fact and remedy."""
        left_days = (self.expires_at - now) / DAY_S
        when = f"expires in {counted(round(left_days), 'day')}" if left_days > 0 else "has expired"
        return f"{self.title} {when}: {self.remedy}"


class Expiries:
    """Finds upcoming expiries.

    Args:
        repository: The signed metadata.
        folder: With the fleet's authority and the controllers' certificates.
        store: With the certificates of devices, and tokens.
        link: Connection from which the broker's certificate is read.
        api_certificate: File of the API's certificate; None without https.
        certificate_days: How long certificates of devices last.
        wall: Seconds since the epoch.
    """

    def __init__(
        self,
        repository: ImageRepository,
        folder: DataFolder,
        store: Store,
        link: Link,
        *,
        api_certificate: Path | None,
        certificate_days: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._repository, self._folder, self._store, self._link = repository, folder, store, link
        self._api_certificate, self._certificate_days = api_certificate, certificate_days
        self._wall = wall
        self._last: tuple[float, tuple[Expiry, ...]] | None = None

    def warnings(self) -> tuple[str, ...]:
        """Return upcoming expiries and full lists of publishers, a sentence each."""
        now = self._wall()
        return (*(one.describe(now) for one in self.find()), *self._repository.warn_of_room())

    def count(self) -> dict[Kind, int]:
        """Return how many things of each kind expire soon."""
        counts = Counter(one.kind for one in self.find())
        return {kind: counts[kind] for kind in KINDS}

    def find(self) -> tuple[Expiry, ...]:
        """Return upcoming expiries, the earliest first."""
        now = self._wall()
        last = self._last
        if last is None or not 0 <= now - last[0] < KEEP_S:
            found = sorted(self._look(now), key=lambda one: one.expires_at)
            last = self._last = (now, tuple(found))
        return last[1]

    def _look(self, now: float) -> Iterator[Expiry]:
        for look in (self._metadata, self._files, self._broker, self._devices, self._tokens):
            try:
                yield from (
                    one for one in look(now) if one.expires_at < now + one.warned_days * DAY_S
                )
            except (EdgepackError, OSError) as error:
                problem = getattr(error, "problem", "") or str(error)
                yield Expiry(
                    kind="unreadable",
                    title=f"Something that cannot be read ({problem})",
                    expires_at=now,
                    remedy=getattr(error, "remedy", None) or "restore it from a copy",
                )

    def _metadata(self, now: float) -> Iterator[Expiry]:
        state = self._repository.state
        expiries = {"root": state.root.signed.expires}
        expiries |= {role: listed.signed.expires for role, listed in state.lists.items()}
        for role, expires in expiries.items():
            yield Expiry(
                kind="metadata",
                title=f"The metadata of '{role}'",
                expires_at=expires.timestamp(),
                remedy=f"edgepack fleet keys renew {role}",
            )
        for role, expires in (
            (SNAPSHOT, state.snapshot.signed.expires),
            (TIMESTAMP, state.timestamp.signed.expires),
        ):
            if expires.timestamp() - now < OVERDUE * life_days(role) * DAY_S:
                yield Expiry(
                    kind="metadata",
                    title=f"The metadata of '{role}', which the controller could not sign again,",
                    expires_at=expires.timestamp(),
                    remedy=f"see the log of edgepack fleet serve, then edgepack fleet keys rotate "
                    f"{role}",
                )

    def _files(self, now: float) -> Iterator[Expiry]:
        pki = self._folder.pki
        if (pki / CA_FILE).exists():
            yield _of_file(
                pki / CA_FILE,
                "authority",
                "The certificate of the fleet's authority",
                "edgepack fleet keys renew-authority",
                # Each device gets the new one with its next certificate.
                warned_days=WARNED_DAYS + self._certificate_days,
            )
        for path in controller_certificates(pki):
            yield _of_file(
                path,
                "controller",
                f"The controller's certificate {path.name}",
                "restart edgepack fleet serve, which renews it",
            )
        if self._api_certificate is not None:
            yield _of_file(
                self._api_certificate,
                "api",
                "The API's certificate",
                f"replace {self._api_certificate} and restart edgepack fleet serve",
            )

    def _broker(self, _: float) -> Iterator[Expiry]:
        if (found := self._link.broker_certificate()) is not None:
            yield Expiry(
                kind="broker",
                title="The broker's certificate",
                expires_at=found.not_valid_after_utc.timestamp(),
                remedy="edgepack fleet broker-config --host BROKER -o FOLDER, then restart the "
                "broker",
            )

    def _devices(self, now: float) -> Iterator[Expiry]:
        ahead_s = min(WARNED_DAYS, DEVICE_OVERDUE * self._certificate_days) * DAY_S
        with self._store.reading() as session:
            found = certificates.ending_before(session, now + ahead_s)
        if found:
            others = len(found) - MAX_NAMED
            more = f" and {counted(others, 'other')}" if others > 0 else ""
            names = ", ".join(device for device, _ in found[:MAX_NAMED])
            yield Expiry(
                kind="device",
                title=f"The certificate of {names}{more}, not renewed in time,",
                expires_at=found[0][1],
                remedy="bring the device online, or edgepack fleet enroll "
                f"{found[0][0]} --group GROUP --replace",
            )

    def _tokens(self, _: float) -> Iterator[Expiry]:
        with self._store.reading() as session:
            rows = access.list_tokens(session)
        for row in rows:
            if row.expires_at is not None:
                yield Expiry(
                    kind="token",
                    title=f"The token '{row.name}' ({row.role})",
                    expires_at=row.expires_at,
                    remedy=f"edgepack fleet tokens revoke {row.name}, then edgepack fleet tokens "
                    f"make {row.name} --role {row.role}",
                )


def _of_file(
    path: Path, kind: Kind, title: str, remedy: str, warned_days: float = WARNED_DAYS
) -> Expiry:
    try:
        found: Sequence[x509.Certificate] = x509.load_pem_x509_certificates(path.read_bytes())
    except UNREADABLE as error:
        raise OSError(f"{path}: {error}") from error
    # Of a chain, the certificate that ends first ends the chain.
    expires_at = min(one.not_valid_after_utc.timestamp() for one in found)
    return Expiry(
        kind=kind, title=title, expires_at=expires_at, remedy=remedy, warned_days=warned_days
    )
