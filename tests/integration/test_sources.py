"""A real agent, a real broker, a real web server: chunks come from the web, the rest by MQTT."""

from pathlib import Path

import pytest

from edgepack.bundle.archive import pack
from edgepack.bundle.chunks import fixed_chunks
from edgepack.registry.bundles import push
from edgepack.registry.credentials import HOST, PASSWORD, USER
from edgepack.registry.way import Way
from tests.integration.conftest import Keys
from tests.simulators import web_ways
from tests.simulators.broker import Broker
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.certificates import issue, make_authority
from tests.simulators.controller import Controller
from tests.simulators.device import DEVICE, Device, running
from tests.simulators.ports import free_port
from tests.simulators.web_ways import BCRYPT, Nginx, registry, tinyproxy

FOLDER, ARCHIVE = "{digest}/{path}", "{name}-{version}.edgepack"


@pytest.fixture(autouse=True)
def _web() -> None:
    web_ways.skip_if_missing()


def make(root: Path, keys: Keys, release: int) -> ExampleBundle:
    """Make a bundle, below its digest and as an archive."""
    bundle = make_bundle(root / f"r{release}", keys[0], release=release)
    (root / bundle.ref.digest).symlink_to(bundle.folder)
    pack(bundle.folder, root / f"{bundle.ref.name}-{bundle.ref.version}.edgepack")
    return bundle


def update(controller: Controller, bundle: ExampleBundle, sequence: int = 1) -> str:
    """Roll the bundle out; return the end of the download."""
    controller.hold(bundle)
    controller.offer(DEVICE, bundle.desired(sequence, soak_s=0.1))
    controller.wait_for(lambda report: report.state == "COMMITTED" and report.sequence == sequence)
    found = [
        event.because
        for event in controller.events
        if event.to_state == "VERIFIED" and event.sequence == sequence
    ]
    return found[-1]


def head_chunks(bundle: ExampleBundle) -> int:
    refs = (bundle.manifest, bundle.signature)
    return sum(len(fixed_chunks(ref.size_bytes)) for ref in refs)


def source_events(controller: Controller) -> list[str]:
    return [event.because for event in controller.events if event.kind == "source"]


@pytest.mark.parametrize("layout", [FOLDER, ARCHIVE])
def test_files_come_from_the_web_and_the_broker_has_next_to_nothing_to_do(
    layout: str,
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
) -> None:
    root = tmp_path / "web"
    first, second = make(root, release_keys, 1), make(root, release_keys, 2)
    with Nginx(tmp_path / "nginx", root) as web:
        url = f"http://127.0.0.1:{web.port}/{layout}"
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=(url,))
        with running(device):
            because = update(controller, first)
            assert f" came from http://127.0.0.1:{web.port}/" in because
            assert controller.sent_chunks == head_chunks(first)
            before = sum(size for _, _, size in web.answers())
            update(controller, second, 2)
            assert controller.sent_chunks == head_chunks(first) + head_chunks(second)
            after = sum(size for _, _, size in web.answers()) - before
            assert device.stop() == 0
    # Half of the model did not change, so half of it was not sent again.
    assert 0 < after < 0.6 * before
    assert {status for _, status, _ in web.answers()} == {206}
    assert source_events(controller) == []


@pytest.mark.parametrize("layout", [FOLDER, ARCHIVE])
def test_a_server_without_ranges_is_good_for_what_is_wanted_whole(
    layout: str,
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
) -> None:
    bundle = make(tmp_path / "web", release_keys, 1)
    with Nginx(tmp_path / "nginx", tmp_path / "web", lines="max_ranges 0;") as web:
        url = f"http://127.0.0.1:{web.port}/{layout}"
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=(url,))
        with running(device):
            update(controller, bundle)
            assert device.stop() == 0
    assert controller.sent_chunks == head_chunks(bundle)
    assert {status for _, status, _ in web.answers()} == {200}


def test_a_source_that_has_nothing_is_told_of_and_the_broker_has_it(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    bundle = make(tmp_path / "made", release_keys, 1)
    (tmp_path / "web").mkdir()
    with Nginx(tmp_path / "nginx", tmp_path / "web") as web:
        gone = f"http://127.0.0.1:{web.port}/{FOLDER}"
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=(gone,))
        with running(device):
            assert "came from" not in update(controller, bundle)
            assert device.stop() == 0
    (told,) = source_events(controller)
    assert told.startswith(f"wanted http://127.0.0.1:{web.port}/")
    assert "; chose the broker for " in told
    assert "HTTP status 404" in told


def test_other_bytes_than_were_signed_are_not_taken_from_the_web_either(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    bundle = make(tmp_path / "made", release_keys, 1)
    other = make_bundle(tmp_path / "other", release_keys[0], release=7, is_wrong=True)
    root = tmp_path / "web"
    root.mkdir()
    (root / bundle.ref.digest).symlink_to(other.folder)
    with Nginx(tmp_path / "nginx", root) as web:
        url = f"http://127.0.0.1:{web.port}/{FOLDER}"
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=(url,))
        with running(device):
            update(controller, bundle)
            assert device.stop() == 0
    assert "chunks are not what was signed" in source_events(controller)[0]
    pointer = device.pointer()
    assert pointer is not None
    assert pointer.bundle == bundle.ref


def test_the_second_source_has_what_the_first_one_has_not(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    bundle = make(tmp_path / "web", release_keys, 1)
    with Nginx(tmp_path / "nginx", tmp_path / "web", lines="location /none { return 403; }") as web:
        urls = tuple(f"http://127.0.0.1:{web.port}/{way}" for way in (f"none/{FOLDER}", ARCHIVE))
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=urls)
        with running(device):
            update(controller, bundle)
            assert device.stop() == 0
    assert controller.sent_chunks == head_chunks(bundle)
    assert source_events(controller) == []


def test_chunks_come_from_the_registry_where_the_bundle_rests(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = make(tmp_path / "made", release_keys, 1)
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    (tmp_path / "htpasswd").write_text(f"team:{BCRYPT}\n")
    auth = f"  htpasswd: {{realm: tests, path: {tmp_path}/htpasswd}}\n"
    monkeypatch.setenv(USER, "team")
    monkeypatch.setenv(PASSWORD, "secret")
    with registry(tmp_path, tls=str(tmp_path / "server"), auth=auth) as server:
        monkeypatch.setenv(HOST, f"127.0.0.1:{server.port}")
        place = f"oci://127.0.0.1:{server.port}/models/tiny"
        push(bundle.folder, f"{place}:1.1.0", Way(ca_file=str(tmp_path / "ca.pem")))
        device = Device(
            tmp_path / "device",
            mosquitto_broker.url,
            release_keys[1],
            sources=(place,),
            sources_ca=tmp_path / "ca.pem",
        )
        with running(device):
            assert f"came from {place}" in update(controller, bundle)
            assert device.stop() == 0
    assert controller.sent_chunks == head_chunks(bundle)
    assert "secret" not in device.said()


def test_files_come_by_https_through_a_proxy_that_the_environment_names(
    tmp_path: Path,
    mosquitto_broker: Broker,
    controller: Controller,
    release_keys: Keys,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = make(tmp_path / "web", release_keys, 1)
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    server = Nginx(tmp_path / "nginx", tmp_path / "web", tls=str(tmp_path / "server"))
    with server as web, tinyproxy(tmp_path, web.port, password="secret") as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{proxy.port}")
        device = Device(
            tmp_path / "device",
            mosquitto_broker.url,
            release_keys[1],
            sources=(f"https://127.0.0.1:{web.port}/{ARCHIVE}",),
            sources_ca=tmp_path / "ca.pem",
        )
        with running(device):
            assert "came from https://" in update(controller, bundle)
            assert device.stop() == 0
        assert f"CONNECT 127.0.0.1:{web.port}" in proxy.said()
    assert controller.sent_chunks == head_chunks(bundle)
    assert "secret" not in device.said()


def test_an_agent_that_is_killed_goes_on_where_it_was(
    tmp_path: Path, mosquitto_broker: Broker, controller: Controller, release_keys: Keys
) -> None:
    bundle = make(tmp_path / "web", release_keys, 1)
    # 40 kB/s: it takes about 13 s.
    with Nginx(tmp_path / "nginx", tmp_path / "web", lines="limit_rate 60k;") as web:
        url = f"http://127.0.0.1:{web.port}/{ARCHIVE}"
        device = Device(tmp_path / "device", mosquitto_broker.url, release_keys[1], sources=(url,))
        with running(device):
            controller.hold(bundle)
            controller.offer(DEVICE, bundle.desired(1, soak_s=0.1))
            controller.wait_for(lambda report: report.state == "DOWNLOADING")
            controller.wait_for(lambda report: report.progress > 0.3)
            assert device.stop() == 0
            device.start()
            controller.wait_for(lambda report: report.state == "COMMITTED")
            assert device.stop() == 0
    assert controller.sent_chunks <= 2 * head_chunks(bundle)
    assert "Traceback" not in device.said()
    size_bytes = sum(path.stat().st_size for path in bundle.folder.rglob("*") if path.is_file())
    assert sum(size for _, _, size in web.answers()) < 1.5 * size_bytes


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://files.example/{path}", "not an https://, http:// or oci:// URL"),
        ("oci://Files/UPPER", "names nothing in a registry"),
        ("https://files.example/all.edgepack", "it names no bundle"),
        ("https://files.example/{model}", "{model} is none of {name}"),
        ("https://files.example/{path", "a source cannot be used"),
    ],
)
def test_a_source_that_is_none_ends_the_agent_with_a_reason(
    url: str, said: str, tmp_path: Path, release_keys: Keys
) -> None:
    broker = f"mqtt://127.0.0.1:{free_port()}"
    device = Device(tmp_path / "device", broker, release_keys[1], sources=(url,))
    device.start()
    assert device.wait() == 1
    assert said in device.said()
