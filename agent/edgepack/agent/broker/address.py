"""Where the broker is, and the way there."""

from edgepack.agent.config import BrokerConfig
from edgepack.errors import DeviceError
from edgepack.web.broker_url import BrokerAddress, read_broker_url
from edgepack.web.proxy import Proxy, find_proxy


def parse_broker_url(url: str) -> BrokerAddress:
    """Reads where the broker is.

    Raises:
        DeviceError: It is no `mqtt://`, `mqtts://`, `ws://` or `wss://` URL.
    """
    try:
        return read_broker_url(url)
    except ValueError as error:
        raise DeviceError(
            f"{url!a} is no address of a broker",
            found_in="broker.url",
            remedy='url = "mqtts://broker.example.com:8883"',
        ) from error


def choose_proxy(broker: BrokerConfig, address: BrokerAddress) -> Proxy | None:
    """The proxy that leads to the broker; None where none does.

    Raises:
        DeviceError: The settings or the environment name what is none.
    """
    try:
        return find_proxy(address.scheme, address.host, broker.proxy)
    except ValueError as error:
        raise DeviceError(
            str(error),
            found_in="broker.proxy" if broker.proxy else "the environment: HTTPS_PROXY, HTTP_PROXY",
            remedy='proxy = "http://proxy.example.com:3128", or "direct" for none',
        ) from error
