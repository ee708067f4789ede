"""A pair of ejabberd's nodes, set up by `broker-config`: failure of a node, and access rules."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgepack.agent.enrolment.identity import key_pem, make_key, make_signing_request
from edgepack.fleet.broker.access import BrokerAccess, open_client
from edgepack.fleet.broker.settings.write import write_broker_folder
from edgepack.fleet.data_folder import DataFolder
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.enrolment.authority import Authority
from edgepack.wire import topics
from tests.integration.fleet.cluster import Cluster, start_cluster
from tests.integration.fleet.conftest import Serve, Simulate, StartAgent
from tests.simulators import ejabberd as ejabberd_nodes
from tests.simulators.waiting import wait_until

EVERYONE = Selector(kind="all")
SIMULATED = 30


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Start nodes for this test."""
    cluster = start_cluster(tmp_path / "ejabberd")
    yield cluster
    cluster.stop()


def test_nodes_are_killed_in_the_middle_of_rollouts_and_then_the_controller_too(
    cluster: Cluster,
    tmp_path: Path,
    serve: Serve,
    simulation: Simulate,
    start_agent: StartAgent,
    release: Callable[..., Path],
) -> None:
    fleet = serve("--broker", cluster.adopt(tmp_path / "fleet"))
    simulation(fleet, count=SIMULATED)
    start_agent(fleet, "cam-1")
    fleet.wait_until(lambda: fleet.info().online == SIMULATED + 1, "all are online")
    first, second = cluster.pair.nodes
    name = fleet.roll_out(release(1), to=EVERYONE, waves="3,100%", soak_s=3.0, deadline_s=400.0)
    fleet.wait_until(lambda: "WORKING" in fleet.rollout(name).counts, "it is under way")
    first.kill()
    view = fleet.wait_for(name, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": SIMULATED + 1}, view
    committed = f"{SIMULATED + 1} of {SIMULATED + 1} devices committed"
    assert view.because.startswith(committed), view
    log = (fleet.data.parent / "serve.log").read_text()
    assert " lost because=" in log, "the controller was on the node that died"
    fleet.wait_until(lambda: fleet.info().online == SIMULATED + 1, "all are on the other node")

    first.begin()
    first.await_clients()
    name = fleet.roll_out(release(2), to=EVERYONE, waves="100%", soak_s=0.5, deadline_s=400.0)
    fleet.wait_until(lambda: "WORKING" in fleet.rollout(name).counts, "it is under way")
    second.kill()
    fleet.kill()
    fleet.start()
    view = fleet.wait_for(name, "FINISHED", "PAUSED")
    assert view.counts == {"COMMITTED": SIMULATED + 1}, view


class Client:
    """A client with a certificate of the fleet's CA, on either node."""

    def __init__(self, cluster: Cluster, name: str, *, node: int, client_id: str = "") -> None:
        folder = cluster.folder / "clients"
        folder.mkdir(exist_ok=True)
        authority, key = Authority(DataFolder(cluster.data).pki), make_key()
        certificate, key_file = folder / f"{name}.crt", folder / f"{name}.key"
        request = make_signing_request(key, name).decode()
        certificate.write_text(authority.sign_client(request, name))
        key_file.write_bytes(key_pem(key))
        access = BrokerAccess(
            url=f"mqtts://127.0.0.1:{cluster.pair.nodes[node].port}",
            ca_file=authority.ca_file,
            cert_file=certificate,
            key_file=key_file,
        )
        self.heard: list[tuple[str, bytes]] = []
        self.said: dict[int, bool] = {}
        self._judged = threading.Event()
        self.is_in = False
        self._client = open_client(access, client_id or name, reopens=False)
        self._client.on_connect = lambda _c, _u, _f, reason, _p: self._judge(not reason.is_failure)
        self._client.on_message = lambda _c, _u, m: self.heard.append((m.topic, bytes(m.payload)))
        self._client.on_publish = lambda _c, _u, number, reason, _p: self.said.update(
            {number: not reason.is_failure}
        )
        self._client.on_subscribe = lambda _c, _u, number, reasons, _p: self.said.update(
            {number: not reasons[0].is_failure}
        )
        self._client.connect_somewhere()
        self._client.loop_start()
        assert self._judged.wait(400)

    def _judge(self, is_in: bool) -> None:
        self.is_in = is_in
        self._judged.set()

    def _outcome(self, number: int | None) -> bool:
        assert number is not None
        wait_until(lambda: number in self.said, "the broker answers")
        return self.said[number]

    @property
    def is_alive(self) -> bool:
        """True if paho's thread runs: without the connection the thread ends."""
        thread = self._client._thread
        return thread is not None and thread.is_alive()

    def publish(self, topic: str, payload: bytes) -> int:
        return self._client.publish(topic, payload, qos=1).mid

    def may_write(self, topic: str, payload: bytes = b"x") -> bool:
        return self._outcome(self.publish(topic, payload))

    def may_read(self, topic: str) -> bool:
        return self._outcome(self._client.subscribe(topic, qos=1)[1])

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def client(ejabberd: Cluster) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(name: str, **settings: Any) -> Client:
        clients.append(Client(ejabberd, name, **settings))
        return clients[-1]

    yield make
    for one in clients:
        one.stop()


def test_a_device_reads_and_writes_by_four_patterns_on_each_node(
    ejabberd: Cluster, client: Callable[..., Client]
) -> None:
    controller = client(DataFolder(ejabberd.data).controller(), node=0)
    device = client("cam-1", node=1)
    assert controller.may_read("ep/1/default/d/cam-1/up/+")
    for kind in topics.UP_KINDS:
        assert device.may_write(topics.up("default", "cam-1", kind), kind.encode())
    wait_until(lambda: len(controller.heard) == len(topics.UP_KINDS), "the other node hears all")
    assert device.may_read("ep/1/default/d/cam-1/dn/#")
    assert device.may_read(topics.broadcast("default", "0" * 64))
    assert device.may_read(topics.coded("default", "0" * 64))
    assert device.may_read("ep/1/default/meta/+")
    assert controller.may_write(topics.desired("default", "cam-1"), b"order")
    wait_until(lambda: (topics.desired("default", "cam-1"), b"order") in device.heard, "the order")

    for forbidden in ("d/cam-2/dn/#", "d/+/dn/#", "d/cam-1/up/reported", "#"):
        assert not device.may_read(f"ep/1/default/{forbidden}"), forbidden
    assert not device.may_read("#")
    for forbidden in (
        "d/cam-2/up/reported",
        "d/cam-1/up/more",
        "d/cam-1/dn/desired",
        "meta/1.root.json",
    ):
        assert not device.may_write(f"ep/1/default/{forbidden}"), forbidden
    assert len(controller.heard) == len(topics.UP_KINDS)


def test_nobody_takes_anothers_client_id_or_the_controllers(
    ejabberd: Cluster, client: Callable[..., Client]
) -> None:
    name = DataFolder(ejabberd.data).controller()
    controller = client(name, node=0)
    assert controller.may_read("ep/1/default/d/+/up/+")
    assert not client("cam-3", node=0, client_id=name).is_in
    assert not client("cam-3", node=1, client_id="cam-1").is_in
    assert controller.may_write(topics.desired("default", "cam-3")), "it is still there"


def test_a_message_over_the_limit_ends_the_connection_of_who_sent_it(
    client: Callable[..., Client],
) -> None:
    device = client("cam-4", node=0)
    topic = topics.up("default", "cam-4", "event")
    assert device.may_write(topic, b"x" * 200_000)
    number = device.publish(topic, b"x" * 300_000)
    wait_until(lambda: not device.is_alive, "the broker ends the connection")
    assert number not in device.said


def test_a_removed_device_that_is_named_may_say_nothing_once_the_settings_are_read_again(
    ejabberd: Cluster, client: Callable[..., Client]
) -> None:
    node = ejabberd.pair.nodes[0]
    topic = topics.up("default", "cam-5", "event")
    assert client("cam-5", node=0).may_write(topic)
    before = node.settings.read_text()
    node.settings.write_text(before.replace("user: []", "user: [cam-5]"))
    try:
        node.ask("reload_config")
        removed = client("cam-5", node=0)
        assert not removed.may_write(topic)
        assert not removed.may_read("ep/1/default/d/cam-5/dn/#")
        assert client("cam-6", node=0).may_write(topics.up("default", "cam-6", "event"))
    finally:
        node.settings.write_text(before)
        node.ask("reload_config")


def test_the_access_rules_for_emqx_are_terms_that_erlang_reads(tmp_path: Path) -> None:
    if not ejabberd_nodes.is_installed():
        pytest.skip("Erlang is not installed (Debian package ejabberd)")
    write_broker_folder(
        DataFolder(tmp_path / "fleet"),
        kind="emqx",
        folder=tmp_path,
        hosts=("localhost",),
        port=1,
        tenant="default",
    )
    asked = (
        f'{{ok, Rules}} = file:consult("{tmp_path}/acl.conf"), io:format("~p", [Rules]), halt().'
    )
    command = [ejabberd_nodes.ERLANG, "-noshell", "-eval", asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout.count("{allow,") == 4
    assert done.stdout.rstrip().endswith("{deny,all}]")
