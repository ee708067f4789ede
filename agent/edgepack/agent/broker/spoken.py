"""Probe of a port's protocol, run when a broker closes a connection without a reason.

TLS on a plain port and plain MQTT on a TLS port end alike, in a connection that is closed.
"""

import socket
import ssl
from typing import Literal

TIMEOUT_S = 3.0

_CONNECT = bytes.fromhex("100d 0004 4d515454 05 02 000a 00 0000")
"""MQTT 5 CONNECT: clean start, keepalive 10 s, a client id that the broker chooses, no user."""
_CONNACK = 0x20

Spoken = Literal["tls", "mqtt", ""]


def why_no_answer(host: str, port: int, *, is_tls: bool) -> str:
    """Return the reason for a closed connection, from the port's protocol; "" if unknown.

    Args:
        host, port: Of the broker.
        is_tls: Whether the client used TLS.
    """
    spoken = find_spoken(host, port)
    mine, other = ("mqtts", "mqtt") if is_tls else ("mqtt", "mqtts")
    if spoken and (spoken == "tls") != is_tls:
        speaks = "TLS" if spoken == "tls" else "MQTT without TLS"
        return f"its port speaks {speaks}, broker.url says {mine}://; write {other}://{host}:{port}"
    if spoken == "tls":
        return "it does not accept this device's certificate (removed, expired, or of another CA)"
    return ""


def find_spoken(host: str, port: int) -> Spoken:
    """Return the protocol of a port; "" if unknown."""
    if _answers_tls(host, port):
        return "tls"
    return "mqtt" if _answers_mqtt(host, port) else ""


def _answers_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # Only whether it answers is asked, and nothing is said.
    try:
        with (
            socket.create_connection((host, port), TIMEOUT_S) as opened,
            context.wrap_socket(opened, server_hostname=host),
        ):
            return True
    except ssl.SSLEOFError:
        return False
    except ssl.SSLError as error:
        # An alert is an answer in TLS: it may want a certificate.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _answers_mqtt(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), TIMEOUT_S) as opened:
            opened.sendall(_CONNECT)
            return opened.recv(1)[:1] == bytes([_CONNACK])
    except OSError:
        return False
