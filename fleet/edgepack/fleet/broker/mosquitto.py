"""Settings for a mosquitto that knows the fleet's certificates and lets nobody read another's."""

from collections.abc import Sequence
from pathlib import Path

from edgepack.durable import write_file
from edgepack.errors import FleetError
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.enrolment.authority import CRL_FILE, Authority, key_pem, make_key
from edgepack.wire import topics
from edgepack.wire.messages import MAX_MESSAGE_BYTES

CONFIG_FILE, ACL_FILE = "mosquitto.conf", "acl"
SETTINGS_VERSION = 5
"""Of what is written here: 1 had no list of revoked certificates and left client ids to clients, 2
kept 1,000 messages for each client, and a quarter of the events of 1,000 devices was lost, 3 knew
one controller alone, 4 read a message of 256 MB to its end before it was dropped."""
_NOTE = "broker-settings"
"""File in the fleet's folder that says which version was written."""

QUEUES = """\
# What waits for a slow device, or for a controller that a thousand devices speak to at once: 64 MiB
# of chunks or of reports. Beyond this it is dropped: chunks are asked for again, reports repeated.
max_queued_messages 100000
max_queued_bytes 67108864
max_inflight_messages 100
"""

_CONFIG = """\
# mosquitto for an edgepack fleet: mosquitto -c {folder}/mosquitto.conf
# Version {version} of these settings; after an update of edgepack, broker-config writes them again.
# Started by root it goes on as the user mosquitto, who must own this folder:
#   chown -R mosquitto {folder}
per_listener_settings false
listener {port}
cafile {folder}/ca.crt
# Devices that were removed: edgepack fleet revocations writes it anew, and a SIGHUP reads it.
crlfile {folder}/ca.crl
certfile {folder}/server.crt
keyfile {folder}/server.key
tls_version tlsv1.2
# The common name of a client's certificate is its user name, and so its place in the topics.
require_certificate true
use_identity_as_username true
# The same name is its client id, so that nobody throws out another by calling himself so.
use_username_as_clientid true
allow_anonymous false
acl_file {folder}/acl
{queues}# Of what a client announces beyond this not a byte is read: it is disconnected.
max_packet_size {packet_bytes}
persistence true
persistence_location {folder}/
autosave_interval 60
"""

_ACL = """\
# A device reads what is meant for it and for all, and writes what it says of itself: these topics
# alone, so that it can leave no more messages behind than that.
pattern read {prefix}/{tenant}/d/%u/dn/#
{writes}
pattern read {prefix}/{tenant}/b/#
pattern read {prefix}/{tenant}/meta/#

"""
_CONTROLLER = """\
user {name}
topic readwrite {prefix}/{tenant}/#
"""


def write_broker_folder(
    data: DataFolder,
    *,
    folder: Path,
    hosts: Sequence[str],
    port: int,
    tenant: str,
    controllers: int = 1,
) -> Path:
    """Writes configuration, access rules, CA certificate and a server certificate.

    Args:
        data: The fleet's folder, with its CA.
        folder: Where to; made when missing. Its server key is replaced when it is there.
        hosts: Names and addresses that devices reach the broker by.
        port: Where it shall listen.
        tenant: Whose topics.
        controllers: How many controllers the rules shall know.

    Returns:
        The configuration file.

    Raises:
        FleetError: The folder cannot be written, or a host or the tenant can have no such name.
    """
    try:
        topics.check_name(tenant, "tenant")
    except ValueError as error:
        raise FleetError(str(error), found_in="--tenant", remedy="--tenant default") from error
    authority, key = Authority(data.pki), make_key()
    certificate = authority.sign_server(key, hosts)
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "ca.crt", authority.pem.encode())
        write_file(folder / CRL_FILE, authority.revocations().pem.encode())
        write_file(folder / "server.key", key_pem(key), mode=0o600)
        write_file(folder / "server.crt", certificate.encode())
        rules = _ACL.format(
            prefix=topics.PREFIX,
            tenant=tenant,
            writes="\n".join(
                f"pattern write {topics.up(tenant, '%u', k)}" for k in topics.UP_KINDS
            ),
        )
        names = [*map(data.controller, range(controllers)), data.voice()]
        rules += "\n".join(
            _CONTROLLER.format(name=name, prefix=topics.PREFIX, tenant=tenant) for name in names
        )
        write_file(folder / ACL_FILE, rules.encode(), mode=0o600)
        config = _CONFIG.format(
            folder=folder,
            version=SETTINGS_VERSION,
            port=port,
            queues=QUEUES,
            packet_bytes=2 * MAX_MESSAGE_BYTES,
        )
        write_file(folder / CONFIG_FILE, config.encode())
        write_file(data.root / _NOTE, str(SETTINGS_VERSION).encode())
    except OSError as error:
        raise FleetError(
            f"cannot write the broker's settings: {error.strerror}", found_in=str(folder)
        ) from error
    return folder / CONFIG_FILE


def are_outdated(data: DataFolder) -> bool:
    """Whether the broker has settings of an earlier version, by what the fleet's folder notes."""
    note = data.root / _NOTE
    try:
        return int(note.read_text()) < SETTINGS_VERSION
    except (OSError, ValueError):
        return True  # It was not noted before version 2.
