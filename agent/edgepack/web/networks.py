"""Networks by distance: this machine, its link, private networks, the public Internet."""

import ipaddress
from enum import IntEnum

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "2001::/23", "3fff::/20", "5f00::/16"),
    )
)
"""Of IANA's special-purpose registries; Pythons before 3.11.10 call some of them global."""


class Network(IntEnum):
    """Network of an address, nearest first."""

    THIS_MACHINE = 0
    LINK = 1
    PRIVATE = 2
    PUBLIC = 3

    @property
    def title(self) -> str:
        """Words for messages: `HOST is …`."""
        return _TITLES[self]


_TITLES = {
    Network.THIS_MACHINE: "on this machine",
    Network.LINK: "on the local link",
    Network.PRIVATE: "in a private network",
    Network.PUBLIC: "on the public Internet",
}


def network_of(address: str) -> Network:
    """Return the network of an IP address; an IPv4 address inside an IPv6 address counts.

    Raises:
        ValueError: The text is not an IP address.
    """
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            found = inner
    if found.is_loopback or found.is_unspecified:
        return Network.THIS_MACHINE
    if found.is_link_local or found.is_multicast:
        return Network.LINK
    is_site_local = isinstance(found, ipaddress.IPv6Address) and found.is_site_local
    is_special = is_site_local or any(found in network for network in _SPECIAL)
    if not found.is_global or found.is_reserved or is_special:
        return Network.PRIVATE
    return Network.PUBLIC


def network_of_name(host: str) -> Network:
    """Return the network of a host that a proxy resolves: only a literal address tells."""
    if host.lower().rstrip(".") == "localhost":
        return Network.THIS_MACHINE
    try:
        return network_of(host)
    except ValueError:
        return Network.PUBLIC
