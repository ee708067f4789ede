"""Settings of a served fleet; `edgepack fleet serve` derives its options from them.

The module imports no database and no web server, so that commands start at once.
"""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edgepack.bandwidth import UNLIMITED, Bandwidth
from edgepack.fleet.enrolment.authority import CERTIFICATE_DAYS
from edgepack.metrics.settings import OtlpConfig
from edgepack.settings import declared

Network = IPv4Network | IPv6Network
_EXISTING = {"unit": "existing file"}


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server.

    Attributes:
        data: The fleet's folder.
    """

    data: Path
    database: Annotated[
        str,
        Meta(
            description="postgresql:// URL; SQLite in the folder when not given. "
            "[env: EDGEPACK_FLEET_DATABASE]",
            extra={"variable": "EDGEPACK_FLEET_DATABASE"},
        ),
    ] = ""
    cache: Annotated[
        Path | None,
        Meta(
            description="Keep the files of releases here, not in the folder: each of several "
            "controllers its own, for releases that were published by URL.",
            extra={"unit": "folder"},
        ),
    ] = None
    broker: Annotated[
        str,
        Meta(
            description="mqtt://, mqtts://, ws:// or wss:// URL, further nodes of it after commas; "
            "an embedded broker when not given."
        ),
    ] = ""
    broker_proxy: Annotated[
        str,
        Meta(
            description="HTTP proxy that leads to the broker; 'direct' for none. For ws:// and "
            "wss:// the environment may name it: HTTPS_PROXY, HTTP_PROXY, NO_PROXY.",
            extra={"metavar": "URL"},
        ),
    ] = ""
    broker_ca: Annotated[
        Path | None,
        Meta(
            description="PEM of the authorities that signed the broker's certificate, where that "
            "is not the fleet's own; Debian's are /etc/ssl/certs/ca-certificates.crt.",
            extra=_EXISTING,
        ),
    ] = None
    broker_port: Annotated[
        int, Meta(ge=0, le=65535, description="Port of the embedded broker.")
    ] = 1883
    broker_user: Annotated[str, Meta(description="User name at the broker.")] = ""
    broker_password_file: Annotated[
        Path | None,
        Meta(description="File whose first line is the password.", extra=_EXISTING),
    ] = None
    host: Annotated[str, Meta(description="Where the API listens.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="Where the API listens.")] = 8600
    tls_cert: Annotated[
        Path | None,
        Meta(
            description="PEM of the API's certificate and those above it: served by https.",
            extra=_EXISTING,
        ),
    ] = None
    tls_key: Annotated[
        Path | None, Meta(description="PEM of its private key.", extra=_EXISTING)
    ] = None
    max_connections: Annotated[
        int,
        Meta(
            ge=16,
            le=60_000,
            description="Most connections of clients to the API; open files (ulimit -n) may allow "
            "fewer.",
        ),
    ] = 1000
    max_connections_per_address: Annotated[
        int,
        Meta(
            ge=1,
            le=60_000,
            description="Most connections of one client address, or of one IPv6 /64 network.",
        ),
    ] = 100
    trusted_proxies: Annotated[
        tuple[Network, ...],
        Meta(
            description="Address or network of a reverse proxy, whose clients share an address: "
            "only --max-connections limits it; repeatable.",
            extra={"option": "--trusted-proxy", "metavar": "ADDRESS"},
        ),
    ] = ()
    tenant: Annotated[str, Meta(description="Whose devices.")] = "default"
    trust: Annotated[
        tuple[Path, ...],
        Meta(
            description="Public key whose bundles are taken from now on; kept in the folder.",
        ),
    ] = ()
    auto_enroll: Annotated[
        bool,
        Meta(
            description="Take in any device that reports (embedded broker only; for trials).",
        ),
    ] = False
    lease_s: Annotated[
        float,
        Meta(
            ge=1,
            le=600,
            description="Of several controllers on a PostgreSQL another one leads so many seconds "
            "after the leader died.",
            extra={"option": "--lease"},
        ),
    ] = 5.0
    value_s: Annotated[
        float,
        Meta(
            ge=0.2,
            le=3600,
            description="Seconds of inferences that make a value of a device; gates compare the "
            "values of an hour with each other.",
            extra={"option": "--value-seconds"},
        ),
    ] = 300.0
    certificate_days: Annotated[
        int,
        Meta(
            ge=7,
            le=3650,
            description="How long the certificates last that devices get; they renew them in the "
            "last third.",
        ),
    ] = CERTIFICATE_DAYS
    oidc: Annotated[
        Path | None,
        Meta(
            description="TOML file about the OpenID Connect provider that people may log in at.",
        ),
    ] = None
    bandwidth: Annotated[
        Bandwidth,
        Meta(
            description="What may be sent of bundles a second, to all devices together, as 20MB/s; "
            "or by the hour of this machine: 08:00-18:00=2MB/s,50MB/s. No limit when not given.",
        ),
    ] = UNLIMITED
    on_revocation: Annotated[
        Path | None,
        Meta(
            description="Run this when certificates were revoked, and at the start: it tells the "
            "broker. EDGEPACK_REVOCATIONS names the list.",
            extra={**_EXISTING, "metavar": "PROGRAM"},
        ),
    ] = None
    device_sources: Annotated[
        tuple[str, ...],
        Meta(
            description="Where devices that are enrolled from now on fetch bundles before they ask "
            "the broker: https:// with words in braces, such as {name}-{version}.edgepack, or "
            "oci://; repeatable.",
            extra={"option": "--source", "metavar": "URL"},
        ),
    ] = ()
    otlp_endpoint: Annotated[
        str,
        Meta(
            description="Send the metrics by OTLP (HTTP, JSON) to this collector, as "
            "http://127.0.0.1:4318.",
            extra={"metavar": "URL"},
        ),
    ] = ""
    otlp_interval_s: Annotated[
        float,
        Meta(
            ge=0.1,
            le=24 * 3600,
            description="Seconds between two exports.",
            extra={"option": "--otlp-interval"},
        ),
    ] = 60.0
    otlp_headers: Annotated[
        Path | None,
        Meta(
            description="File with headers of the exports, a line 'Name: value' each.",
            extra=_EXISTING,
        ),
    ] = None
    otlp_ca: Annotated[
        Path | None,
        Meta(description="PEM of the authorities of the collector.", extra=_EXISTING),
    ] = None
    otlp_cert: Annotated[
        Path | None,
        Meta(description="PEM of a client certificate for the collector.", extra=_EXISTING),
    ] = None
    otlp_key: Annotated[
        Path | None, Meta(description="PEM of its private key.", extra=_EXISTING)
    ] = None
    otlp_proxy: Annotated[
        str,
        Meta(
            description="HTTP proxy that leads to the collector; 'direct' for none.",
            extra={"metavar": "URL"},
        ),
    ] = ""

    @property
    def otlp(self) -> OtlpConfig:
        """Settings of the export of metrics."""
        return OtlpConfig(
            endpoint=self.otlp_endpoint,
            interval_s=self.otlp_interval_s,
            headers_file=str(self.otlp_headers or ""),
            ca_file=str(self.otlp_ca or ""),
            cert_file=str(self.otlp_cert or ""),
            key_file=str(self.otlp_key or ""),
            proxy=self.otlp_proxy,
        )


SETTINGS = declared(ServeSettings)
