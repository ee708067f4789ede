"""The command `edgepack fleet serve`."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgepack.bandwidth import Bandwidth
from edgepack.fleet.broker.settings.write import are_outdated
from edgepack.fleet.commands.options import (
    PORT,
    Network,
    NetworkAddress,
    Rate,
    check_data_folder,
    data_option,
)
from edgepack.fleet.commands.printing import LogFormatter
from edgepack.fleet.commands.repeated_records import RepeatedRecords
from edgepack.key_place import into_work_tree_option

if TYPE_CHECKING:
    from edgepack.fleet.server.fleet import Fleet


@click.command()
@data_option
@click.option(
    "--database",
    envvar="EDGEPACK_FLEET_DATABASE",
    default="",
    help="postgresql:// URL; SQLite in the folder when not given. [env: EDGEPACK_FLEET_DATABASE]",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the files of releases here, not in the folder: each of several controllers its own, "
    "for releases that were published by URL.",
)
@click.option(
    "--broker",
    default="",
    help="mqtt://, mqtts://, ws:// or wss:// URL, further nodes of it after commas; an embedded "
    "broker when not given.",
)
@click.option(
    "--broker-proxy",
    default="",
    metavar="URL",
    help="HTTP proxy that leads to the broker; 'direct' for none. For ws:// and wss:// the "
    "environment may name it: HTTPS_PROXY, HTTP_PROXY, NO_PROXY.",
)
@click.option(
    "--broker-ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of the authorities that signed the broker's certificate, where that is not the "
    "fleet's own; Debian's are /etc/ssl/certs/ca-certificates.crt.",
)
@click.option(
    "--broker-port", type=PORT, default=1883, show_default=True, help="Port of the embedded broker."
)
@click.option("--broker-user", default="", help="User name at the broker.")
@click.option(
    "--broker-password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File whose first line is the password.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the API listens.")
@click.option("--port", type=PORT, default=8600, show_default=True, help="Where the API listens.")
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of the API's certificate and those above it: served by https.",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="PEM of its private key.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(16, 60_000),
    default=1000,
    show_default=True,
    help="Most connections of clients to the API; open files (ulimit -n) may allow fewer.",
)
@click.option(
    "--max-connections-per-address",
    type=click.IntRange(1, 60_000),
    default=100,
    show_default=True,
    help="Most connections of one client address, or of one IPv6 /64 network.",
)
@click.option(
    "--trusted-proxy",
    "proxies",
    type=NetworkAddress(),
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a reverse proxy, whose clients share an address: only "
    "--max-connections limits it; repeatable.",
)
@click.option("--tenant", default="default", show_default=True, help="Whose devices.")
@click.option(
    "--trust",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="Public key whose bundles are taken from now on; kept in the folder.",
)
@click.option(
    "--auto-enroll",
    is_flag=True,
    help="Take in any device that reports (embedded broker only; for trials).",
)
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(1, 600),
    default=5.0,
    show_default=True,
    help="Of several controllers on a PostgreSQL another one leads so many seconds after the "
    "leader died.",
)
@click.option(
    "--certificate-days",
    type=click.IntRange(7, 3650),
    default=825,
    show_default=True,
    help="How long the certificates last that devices get; they renew them in the last third.",
)
@click.option(
    "--oidc",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file about the OpenID Connect provider that people may log in at.",
)
@click.option(
    "--bandwidth",
    type=Rate(),
    default="",
    help="What may be sent of bundles a second, to all devices together, as 20MB/s; or by the hour "
    "of this machine: 08:00-18:00=2MB/s,50MB/s. No limit when not given.",
)
@click.option(
    "--on-revocation",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PROGRAM",
    help="Run this when certificates were revoked, and at the start: it tells the broker. "
    "EDGEPACK_REVOCATIONS names the list.",
)
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="URL",
    help="Where devices that are enrolled from now on fetch bundles before they ask the broker: "
    "https:// with words in braces, such as {name}-{version}.edgepack, or oci://; repeatable.",
)
@into_work_tree_option
@click.option("-v", "--verbose", is_flag=True, help="Log every transition.")
def serve(
    data: Path,
    database: str,
    cache: Path | None,
    broker: str,
    broker_proxy: str,
    broker_ca: Path | None,
    broker_port: int,
    broker_user: str,
    broker_password_file: Path | None,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    max_connections: int,
    max_connections_per_address: int,
    proxies: "tuple[Network, ...]",
    tenant: str,
    trust: tuple[Path, ...],
    auto_enroll: bool,
    lease_s: float,
    certificate_days: int,
    bandwidth: Bandwidth,
    oidc: Path | None,
    on_revocation: Path | None,
    sources: tuple[str, ...],
    verbose: bool,
) -> None:
    """Run controller, depot and API, and a broker when none is named, until Ctrl-C.

    \b
    Example:
      edgepack fleet serve --trust release.pub
      edgepack fleet serve --broker mqtts://broker.example:8883
      edgepack fleet serve --broker wss://broker.example/mqtt --broker-proxy http://proxy:3128
      edgepack fleet serve --host 0.0.0.0 --tls-cert fleet.crt --tls-key fleet.key
      edgepack fleet serve --bandwidth 08:00-18:00=2MB/s,50MB/s
    """
    check_data_folder(data)
    # Database, web server and broker are loaded for this command only: the others start at once.
    from edgepack.fleet.broker.embedded import LIMITS
    from edgepack.fleet.dashboard.routes import dashboard_routes
    from edgepack.fleet.server.connections import ConnectionLimits
    from edgepack.fleet.server.listening import is_loopback
    from edgepack.fleet.server.serve import serve as run
    from edgepack.fleet.server.settings import ServeSettings

    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[RepeatedRecords(handler)])
    password = ""
    if broker_password_file is not None:
        password = broker_password_file.read_text().partition("\n")[0]

    def ready(running: "Fleet", url: str) -> None:
        click.echo(f"fleet '{tenant}' serves at {url}, token in {data / 'token'}", err=True)
        click.echo(f"dashboard: {url}/ (edgepack fleet login prints a link into it)", err=True)
        click.echo(f"broker: {running.broker_url}", err=True)
        if not broker:
            click.echo(f"note: {LIMITS}", err=True)
        if running.broker_is_tls and are_outdated(running.folder):
            click.echo(
                "note: the broker's settings were written by an earlier edgepack: write them again "
                "(edgepack fleet broker-config) and restart the broker",
                err=True,
            )
        if tls_cert is None and not is_loopback(host):
            click.echo(
                f"note: what goes to {host} and from it, tokens too, can be read on its way: "
                "serve it by https (--tls-cert, --tls-key)",
                err=True,
            )
        if kept := running.repository.keys_at_hand():
            click.echo(
                f"note: keys that belong elsewhere ({', '.join(kept)}) lie in "
                f"{running.repository.offline}: move that folder off this machine, and name it "
                "with --keys when you sign (edgepack fleet keys)",
                err=True,
            )
        for warning in running.expiries.warnings():
            click.echo(f"note: {warning}", err=True)
        if not running.trust.keys:
            click.echo("note: no key is trusted yet, so no bundle is taken (--trust)", err=True)

    run(
        ServeSettings(
            data=data,
            database=database,
            cache=cache,
            broker=broker,
            broker_proxy=broker_proxy,
            broker_ca=broker_ca,
            broker_port=broker_port,
            broker_user=broker_user,
            broker_password=password,
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            connections=ConnectionLimits(
                total=max_connections,
                per_address=max_connections_per_address,
                proxies=proxies,
            ),
            tenant=tenant,
            trust=trust,
            auto_enroll=auto_enroll,
            lease_s=lease_s,
            certificate_days=certificate_days,
            bandwidth=bandwidth,
            oidc=oidc,
            on_revocation=on_revocation,
            device_sources=sources,
        ),
        dashboard_routes,
        ready,
    )
