"""Checks of the device's identity and of its fleet: certificate, key, broker."""

import ssl
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from edgepack.agent.broker.address import find_ways
from edgepack.agent.broker.credentials import tls_context
from edgepack.agent.config import AgentConfig, BrokerConfig
from edgepack.agent.doctor.findings import Device, Finding, ok, warn, wrong
from edgepack.agent.enrolment.identity import ends_on, is_renewal_due, left_s, load_key, name_of
from edgepack.bundle.certificates import UNREADABLE
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.pkcs11_uri import is_uri
from edgepack.errors import DeviceError, EdgepackError
from edgepack.text import counted
from edgepack.web.clock import describe_invalid_time
from edgepack.web.deadline import Deadline, answer_within

_DAY_S = 24 * 3600
_CONNECT_S = 10.0
_ENROL = "edgepack fleet enroll {device} --replace, then edgepack-agent setup with the new package"


def check_trust(device: Device) -> Iterator[Finding]:
    """Check the keys of the accepted signers, and the fleet's root."""
    config = device.config
    if config is None:
        return
    keys, root = config.trust.keys, config.trust.root
    if not keys:
        yield wrong("trust", "the settings trust no key", 'keys = ["release.pub"] below [trust]')
    for key in keys:
        if not Path(key).exists():
            remedy = "copy the signer's public key there, or change trust.keys"
            yield wrong("trust", f"there is no key {key}", remedy)
            return
        try:
            load_public_key(Path(key))
        except EdgepackError as error:
            yield wrong("trust", f"{key}: {error.problem}", "copy the signer's public key again")
            return
    if root and not Path(root).exists():
        remedy = "copy root.json there, as edgepack fleet enroll wrote it"
        yield wrong("trust", f"there is no root {root}", remedy)
    elif keys:
        of = f" and the fleet's root {root}" if root else ""
        yield ok("trust", f"{counted(len(keys), 'key')} of signers{of}")


def check_certificate(device: Device) -> Iterator[Finding]:
    """Check life, name and key of the certificate, and the permissions of the key."""
    config = device.config
    if config is None:
        return
    if not config.signing_certificate:
        yield warn(
            "certificate", "the settings name none", "enrol the device: edgepack-agent setup"
        )
        return
    path, remedy = Path(config.signing_certificate), _ENROL.format(device=config.device)
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except PermissionError:
        yield warn("certificate", f"this user may not read {path}", "run doctor as root")
        return
    except (OSError, *UNREADABLE) as error:
        yield wrong("certificate", f"{path} cannot be read: {error}", remedy)
        return
    left = left_s(certificate, device.now)
    ended = f"it expired on {ends_on(certificate)}, by this device's clock of {_day(device.now)}"
    if name_of(certificate) != config.device:
        fact = f"it is of {name_of(certificate)[:64]!a}, and this device is {config.device!a}"
        yield wrong("certificate", fact, remedy)
    elif left <= 0:
        yield wrong("certificate", ended, f"set the clock if it is wrong; else {remedy}")
    elif certificate.not_valid_before_utc.timestamp() > device.now:
        yield wrong("certificate", "it is not valid yet by this device's clock", "set the clock")
    elif is_renewal_due(certificate, device.now):
        yield warn(
            "certificate",
            f"it ends in {left / _DAY_S:.0f} days, and its renewal is due",
            "let the agent reach its fleet, which renews it",
        )
    else:
        yield ok("certificate", f"valid for {left / _DAY_S:.0f} days, until {ends_on(certificate)}")
    yield from _check_key(config, certificate)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def _check_key(config: AgentConfig, certificate: x509.Certificate) -> Iterator[Finding]:
    if not config.signing_key or is_uri(config.signing_key):
        return
    path = Path(config.signing_key)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield wrong("key", f"other users may use {path} (mode {mode:o})", f"chmod 600 {path}")
        key = load_key(path.read_bytes(), str(path))
    except PermissionError:
        yield warn("key", f"this user may not read {path}", "run doctor as root")
    except FileNotFoundError:
        yield wrong("key", f"there is no {path}", _ENROL.format(device=config.device))
    except (OSError, DeviceError) as error:
        yield wrong("key", f"{path}: {error}", _ENROL.format(device=config.device))
    else:
        if key.public_key() != certificate.public_key():
            fact = f"{path} does not belong to the certificate"
            yield wrong("key", fact, _ENROL.format(device=config.device))


def check_broker(device: Device) -> Iterator[Finding]:
    """Report the running agent's connection; without an agent, connect to each node.

    A second connection with this device's identity would end the agent's, so none is made.
    """
    config, status = device.config, device.status
    if config is None:
        return
    if config.broker is None:
        yield ok("broker", "the settings name none: the device runs without a fleet")
        return
    if status is not None and status.is_running and (known := status.broker):
        minutes = (device.now - known.since) / 60
        if known.is_connected:
            yield ok("broker", f"{known.broker} is reached, for {minutes:.0f} minutes")
        else:
            because = known.because or "no reason is known yet"
            yield wrong(
                "broker",
                f"{known.broker} is not reached, for {minutes:.0f} minutes: {because}",
                "check network, firewall and broker.url; models serve meanwhile",
            )
        return
    yield from try_broker(config.broker, config.device)


def try_broker(broker: BrokerConfig, name: str) -> Iterator[Finding]:
    """Connect to each node of a broker, without a message.

    Args:
        broker: Settings of the broker.
        name: The device.
    """
    try:
        ways = find_ways(broker)
        context = tls_context(broker, name) if ways[0].address.is_tls else None
    except PermissionError:
        yield warn("broker", "this user may not read its TLS files", "run doctor as root")
        return
    except DeviceError as error:
        yield wrong("broker", error.problem, error.remedy or f"correct {error.found_in}")
        return
    for way in ways:
        title = way.address.title
        if way.proxy is not None:
            yield warn("broker", f"{title} is behind a proxy", "start the agent, which connects")
            continue
        try:
            _connect(way.address.host, way.address.port, context)
        except OSError as error:
            because = describe_invalid_time(error, time.time()) or str(error)
            yield wrong(
                "broker", f"{title} is not reached: {because}", "check network and broker.url"
            )
        else:
            yield ok("broker", f"{title} accepts connections; no agent is connected")


def _connect(host: str, port: int, context: ssl.SSLContext | None) -> None:
    deadline = Deadline(answer_within(_CONNECT_S))
    with deadline.connect(host, port).leave_deadline() as opened:
        opened.settimeout(_CONNECT_S)
        if context is not None:
            context.wrap_socket(opened, server_hostname=host).close()
