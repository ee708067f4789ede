"""Settings of a served fleet."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.fleet.enrolment.authority import CERTIFICATE_DAYS
from edgepack.fleet.server.connections import ConnectionLimits


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server.

    Attributes:
        data: The fleet's folder.
        cache: Where the files of releases lie; None is the fleet's folder.
        database: See `open_store`; "" means SQLite in the folder.
        broker: URL of a broker; "" means the embedded broker.
        broker_proxy: URL of an HTTP proxy to the broker.
        broker_ca: PEM of the authority that signed the broker's certificate; None is the fleet's
            own authority.
        broker_port: Port of the embedded broker.
        broker_user, broker_password: For brokers with passwords.
        host, port: Where the API listens.
        tls_cert, tls_key: PEM files of its certificate and key; None for plain HTTP.
        connections: How many connections the API's clients may have.
        tenant: Tenant of the devices.
        trust: Files of public keys to trust from now on.
        auto_enroll: Takes in any device that reports; embedded broker only.
        certificate_days: How long the certificates last that devices get.
        lease_s: Time until another controller leads after the leader died; for several controllers
            on a PostgreSQL.
        bandwidth: Bytes per second that the depot may send.
        on_revocation: Program that tells the broker of revoked certificates; None for none.
        device_sources: URLs of bundle sources besides the broker: newly enrolled devices try these
            first.
        oidc: TOML file about the OpenID Connect provider that people log in at; None for none.
    """

    data: Path
    cache: Path | None = None
    database: str = ""
    broker: str = ""
    broker_proxy: str = ""
    broker_ca: Path | None = None
    broker_port: int = 1883
    broker_user: str = ""
    broker_password: str = ""
    host: str = "127.0.0.1"
    port: int = 8600
    tls_cert: Path | None = None
    tls_key: Path | None = None
    connections: ConnectionLimits = ConnectionLimits()
    tenant: str = "default"
    trust: Sequence[Path] = ()
    auto_enroll: bool = False
    lease_s: float = 5.0
    certificate_days: int = CERTIFICATE_DAYS
    bandwidth: Bandwidth = UNLIMITED
    on_revocation: Path | None = None
    device_sources: tuple[str, ...] = ()
    oidc: Path | None = None
