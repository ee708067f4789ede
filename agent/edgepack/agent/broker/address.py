"""Addresses of the broker's nodes, and the network path to the broker."""

from edgepack.agent.config import BrokerConfig
from edgepack.errors import DeviceError
from edgepack.web.broker_url import BrokerAddress, read_broker_urls
from edgepack.web.mqtt_client import Way
from edgepack.web.proxy import Proxy, find_proxy


def parse_broker_url(url: str) -> tuple[BrokerAddress, ...]:
    """Read where the nodes of the broker are.

    Raises:
        DeviceError: The text is not an `mqtt://`, `mqtts://`, `ws://` or `wss://` URL.
    """
    try:
        return read_broker_urls(url)
    except ValueError as error:
        raise DeviceError(
            f"{url!a} is not an address of a broker",
            found_in="broker.url",
            remedy='url = "mqtts://broker.example.com:8883", or several nodes of it: '
            '"mqtts://one.example.com:8883,two.example.com:8883"',
        ) from error


def find_ways(broker: BrokerConfig) -> tuple[Way, ...]:
    """Return the nodes of the broker, each with the proxy that leads there.

    Raises:
        DeviceError: The settings make no sense.
    """
    return tuple(
        Way(address=address, proxy=_choose_proxy(broker, address))
        for address in parse_broker_url(broker.url)
    )


def _choose_proxy(broker: BrokerConfig, address: BrokerAddress) -> Proxy | None:
    """Return the proxy that leads to a node; None where none does.

    Raises:
        DeviceError: The settings or the environment name an invalid proxy.
    """
    try:
        return find_proxy(address.scheme, address.host, broker.proxy)
    except ValueError as error:
        raise DeviceError(
            str(error),
            found_in="broker.proxy" if broker.proxy else "the environment: HTTPS_PROXY, HTTP_PROXY",
            remedy='proxy = "http://proxy.example.com:3128", or "direct" for none',
        ) from error
