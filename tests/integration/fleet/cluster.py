"""A pair of ejabberd's nodes as the broker of successive fleets."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.broker.settings.write import write_broker_folder
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.enrolment.authority import Authority
from tests.simulators import ejabberd
from tests.simulators.ejabberd import EjabberdPair

CONTROLLERS = 3


class Cluster:
    """Two nodes of ejabberd, set up by `broker-config` for fleets that begin with its identity."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "fleet"
        settings = write_broker_folder(
            DataFolder(self.data),
            kind="ejabberd",
            folder=folder / "broker",
            hosts=("localhost", "127.0.0.1"),
            port=8883,
            tenant="default",
            controllers=CONTROLLERS,
        )
        self.names = [DataFolder(self.data).controller(place) for place in range(CONTROLLERS)]
        self.pair = EjabberdPair(folder, settings)
        self._is_used = False

    def access(self, name: str, url: str = "") -> BrokerAccess:
        """Return the credentials of a controller or of the leader.

        Args:
            name: A name known to the nodes.
            url: Of a node; "" is both.
        """
        folder = DataFolder(self.data)
        authority = Authority(folder.pki)
        is_further = name != folder.controller()
        certificate, key = authority.controller_files(name, is_further=is_further)
        return BrokerAccess(
            url=url or self.pair.url,
            ca_file=authority.ca_file,
            cert_file=certificate,
            key_file=key,
        )

    def adopt(self, data: Path) -> str:
        """Copy the CA and the known names to a new fleet; return the URL of the nodes.

        Delete the data that an earlier fleet left on the nodes.
        """
        shutil.copytree(self.data, data)
        if self._is_used:
            client_id = DataFolder(self.data).leader_client_id()
            for node in self.pair.nodes:
                self._forget(client_id, f"mqtts://127.0.0.1:{node.port}")
        self._is_used = True
        return self.pair.url

    def _forget(self, client_id: str, url: str) -> None:
        """End the session of this client id and delete retained messages."""
        client = open_client(self.access(client_id, url), client_id)
        ended = threading.Event()
        retained: set[str] = set()

        def hear(_client: object, _userdata: object, message: Any) -> None:
            if message.topic == "ep/1/default/end":
                ended.set()
            elif message.payload:
                retained.add(message.topic)

        client.on_message = hear

        def connected(*_: object) -> None:  # also anew, where a node ended the connection
            client.subscribe("ep/1/default/#", qos=1)

        def subscribed(*_: object) -> None:
            client.publish("ep/1/default/end", b"end", qos=1)

        client.on_connect, client.on_subscribe = connected, subscribed
        client.connect_somewhere()
        client.loop_start()
        assert ended.wait(400)
        for topic in retained:
            client.publish(topic, b"", qos=1, retain=True).wait_for_publish(10)
        client.disconnect()
        client.loop_stop()

    def stop(self) -> None:
        self.pair.stop()


def start_cluster(folder: Path) -> Cluster:
    if not ejabberd.is_installed():
        pytest.skip("ejabberd is not installed (Debian package ejabberd)")
    return Cluster(folder)
