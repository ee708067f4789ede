"""Writes a broker's folder: its settings, access rules, the fleet's CA and a server certificate."""

import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jinja2
import msgspec

from edgepack.agent.enrolment.identity import key_pem, make_key
from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.enrolment.authority import CRL_FILE, Authority
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES

SETTINGS_VERSION = 1
"""Of what is written here: 1 had no list of revoked certificates and left client ids to clients, 2
kept 1,000 messages for each client, and a quarter of the events of 1,000 devices was lost, 3 knew
one controller alone, 4 read a message of 256 MB to its end before it was dropped, 5 let a node of
ejabberd drop most of what devices of another one should have got."""
_NOTE = "broker-settings"
"""File in the fleet's folder that says which version was written."""
_TEMPLATES = Path(__file__).parent / "templates"


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of broker.

    Attributes:
        files: Files to write, each from the template of the same name; the first file starts the
            broker.
        secret: Files of `files` that only their owner may read.
        start: Start command; `{config}` stands for the first file, `{folder}` for the folder.
        user: User as whom the broker continues when root starts it; "" for the same user.
        is_run_here: Whether the project's tests run the broker with these settings.
    """

    files: tuple[str, ...]
    secret: tuple[str, ...] = ()
    start: str
    user: str = ""
    is_run_here: bool


KINDS = {
    "mosquitto": Kind(
        files=("mosquitto.conf", "acl"),
        secret=("acl",),
        start="mosquitto -c {config}",
        user="mosquitto",
        is_run_here=True,
    ),
    "ejabberd": Kind(
        files=("ejabberd.yml", "ejabberdctl.cfg", "vm.args"),
        start="ejabberdctl --ctl-config {folder}/ejabberdctl.cfg foreground",
        is_run_here=True,
    ),
    "emqx": Kind(
        files=("emqx.conf", "acl.conf"),
        start="merge {config} into etc/emqx.conf, then: emqx start",
        is_run_here=False,
    ),
    "hivemq": Kind(
        files=("hivemq.xml", "hivemq-ese.xml", "hivemq-realm.xml"),
        start="copy {config} to conf/config.xml, hivemq-ese.xml to that of the Enterprise Security "
        "Extension, then: bin/run.sh",
        is_run_here=False,
    ),
}


def write_broker_folder(
    data: DataFolder,
    *,
    kind: str = "mosquitto",
    folder: Path,
    hosts: Sequence[str],
    port: int,
    tenant: str,
    controllers: int = 1,
) -> Path:
    """Write configuration, access rules, CA certificate and a server certificate.

    Args:
        data: The fleet's folder, with its CA.
        kind: A key of `KINDS`.
        folder: Where to; made when missing. An existing server key is replaced.
        hosts: Names and addresses that devices reach the broker by, of all its nodes.
        port: Port to listen on.
        tenant: Tenant of the topics.
        controllers: How many controllers the rules shall know.

    Returns:
        The configuration file.

    Raises:
        FleetError: The folder cannot be written, or a host or the tenant has an invalid name.
    """
    try:
        topics.check_name(tenant, "tenant")
    except ValueError as error:
        raise FleetError(str(error), found_in="--tenant", remedy="--tenant default") from error
    authority, key = Authority(data.pki), make_key()
    certificate = authority.sign_server(key, hosts)
    folder = folder.resolve()
    values = {
        "folder": str(folder),
        "version": SETTINGS_VERSION,
        "hosts": hosts,
        "port": port,
        "root": f"{topics.PREFIX}/{tenant}",
        "up_kinds": topics.UP_KINDS,
        "controllers": [*map(data.controller, range(controllers)), data.leader_client_id()],
        "message_bytes": 2 * MAX_MESSAGE_BYTES,
    }
    wanted = KINDS[kind]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "ca.crt", authority.pem.encode())
        write_file(folder / CRL_FILE, authority.revocations().pem.encode())
        write_file(folder / "server.key", key_pem(key), mode=0o600)
        write_file(folder / "server.crt", certificate.encode())
        for name in wanted.files:
            content = _environment().get_template(f"{name}.jinja").render(values)
            mode = 0o600 if name in wanted.secret else 0o644
            write_file(folder / name, content.encode(), mode=mode)
        write_file(data.root / _NOTE, str(SETTINGS_VERSION).encode())
    except OSError as error:
        raise FleetError(
            f"cannot write the broker's settings: {error.strerror}", found_in=str(folder)
        ) from error
    return folder / wanted.files[0]


def queue_settings() -> str:
    """Return the lines of mosquitto's settings that say how much waits for a client."""
    return (_TEMPLATES / "queues.conf.jinja").read_text()


def are_outdated(data: DataFolder) -> bool:
    """Return whether `broker-config` wrote older settings last, as the fleet's folder notes."""
    note = data.root / _NOTE
    try:
        return int(note.read_text()) < SETTINGS_VERSION
    except (OSError, ValueError):
        return False  # The broker has settings of its own.


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=lambda name: name is not None and name.endswith(".xml.jinja"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment
