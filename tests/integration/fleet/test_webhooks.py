"""Webhooks with a real receiver: failures, a killed fleet, and delivery of each message."""

import base64
import hashlib
import hmac
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgepack.errors import FleetError
from edgepack.fleet import FleetClient
from tests.integration.fleet.conftest import MakeBundle, Serve, Simulate, edgepack
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until


class Receiver:
    """Receiver of posts; answers `status`, or nothing at all."""

    def __init__(self, port: int = 0) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.refused: list[str] = []
        self.status: Callable[[int], int] = lambda _: 204
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = outer.status(len(outer.taken) + len(outer.refused))
                if 200 <= status < 300:
                    outer.taken.append((headers, body))
                else:
                    outer.refused.append(headers["webhook-id"])
                self.send_response(status)
                if 300 <= status < 400:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Ignore the message."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook?key=1"

    def types(self) -> list[str]:
        return [json.loads(body)["type"] for _, body in self.taken]

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.stop()


def is_signed(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Return whether a message is signed, by the text of Standard Webhooks."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    moment = headers["webhook-timestamp"]
    assert abs(time.time() - int(moment)) < 300
    text = f"{headers['webhook-id']}.{moment}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
    return f"v1,{wanted}" in headers["webhook-signature"].split()


def test_what_happens_to_a_rollout_is_told_signed_and_again_until_it_is_taken(
    serve: Serve, simulation: Simulate, make_bundle: MakeBundle, receiver: Receiver
) -> None:
    fleet = serve()
    secret = fleet.client.add_webhook("chat", receiver.url, is_unsafe=True).secret
    receiver.status = lambda count: 503 if count < 2 else 200  # it fails twice
    simulation(fleet, count=2, fail_rate=1.0)
    name = fleet.roll_out(make_bundle(), waves="1,100%")
    fleet.wait_for(name, "PAUSED")
    wait_until(lambda: bool(receiver.refused), "the first attempt")
    fleet.kill()  # what it had to tell is in the database
    fleet.start()
    wait_until(lambda: "rollout.breach" in receiver.types(), "all is told")
    assert len(receiver.refused) == 2
    assert receiver.refused[0] == receiver.refused[1] == receiver.taken[0][0]["webhook-id"]
    assert receiver.types()[:2] == ["rollout.start", "rollout.wave"]
    wait_until(lambda: "device.failed" in receiver.types(), "the device's failure is told")
    ids = [headers["webhook-id"] for headers, _ in receiver.taken]
    assert len(set(ids)) == len(ids)
    for headers, body in receiver.taken:
        assert is_signed(secret, headers, body)
        assert not is_signed(secret, headers, body + b" ")
    told = {
        found["type"]: found["data"] for found in map(json.loads, (b for _, b in receiver.taken))
    }
    assert told["device.failed"]["state"] == "ROLLED_BACK"
    assert told["device.failed"]["because"]
    assert told["rollout.breach"]["numbers"]["gate"] == "failures"
    assert {data["tenant"] for data in told.values()} == {"default"}
    fleet.wait_until(lambda: fleet.client.webhooks()[0].delivered == len(ids), "all are counted")
    (view,) = fleet.client.webhooks()
    assert (view.delivered, view.skipped, view.failures, view.because) == (len(ids), 0, 0, "")
    acts = [entry for entry in fleet.client.audit() if entry.action == "webhook.add"]
    assert [(entry.actor, entry.because) for entry in acts] == [("token", "chat")]


def test_a_receiver_that_is_gone_for_good_is_shown_and_one_removed_hears_no_more(
    serve: Serve, receiver: Receiver, tmp_path: Path
) -> None:
    fleet = serve()
    gone = f"http://127.0.0.1:{free_port()}/"
    for name, url in (("gone", gone), ("here", receiver.url), ("moved", receiver.url)):
        done = edgepack(
            fleet, "fleet", "webhooks", "add", name, "--to", url, "--on", "device", "--unsafe"
        )
        assert done.stdout.startswith("whsec_"), done.stderr
    fleet.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1")
    wait_until(lambda: len(receiver.taken) == 2, "both that are here are told")
    wait_until(
        lambda: {v.name for v in fleet.client.webhooks() if v.failures} == {"gone"}, "it failed"
    )
    shown = edgepack(fleet, "fleet", "webhooks").stdout
    assert re.search(r"failed \d+x, again", shown)
    assert "Connection refused" in " ".join(shown.split())
    tried = edgepack(fleet, "fleet", "webhooks", "test", "gone")
    assert (tried.returncode, tried.stdout) == (
        1,
        "the receiver cannot be reached: Connection refused\n",
    )
    receiver.status = lambda _: 307
    trial = fleet.client.try_webhook("moved")
    assert trial.because == (
        "the receiver answered HTTP status 307, and redirects are not followed"
    )
    receiver.status = lambda _: 204
    assert edgepack(fleet, "fleet", "webhooks", "test", "here").returncode == 0
    for name in ("here", "moved"):
        fleet.client.remove_webhook(name)
    heard = len(receiver.taken)
    fleet.client.enroll("cam-2", group="g", folder=tmp_path / "cam-2")
    time.sleep(2.5)  # longer than it takes to be told
    assert len(receiver.taken) == heard


def test_only_an_admin_has_messages_sent_and_not_into_a_private_network(serve: Serve) -> None:
    fleet = serve()
    for url, problem in (
        ("http://hooks.example/", "without TLS can be read"),
        ("https://127.0.0.1/", r"is in a private network \(127.0.0.1\)"),
        ("https://localhost/", "is in a private network"),
        ("https://169.254.169.254/latest/meta-data", "is in a private network"),
        ("https://[::ffff:10.0.0.1]/", "is in a private network"),
        ("ftp://hooks.example/", "is not an https:// URL"),
        ("https://user@hooks.example/", "no user"),
    ):
        with pytest.raises(FleetError, match=problem):
            fleet.client.add_webhook("chat", url)
    with pytest.raises(FleetError, match="malformed"):
        fleet.client.add_webhook("chat", "https://x.example", types=["no such thing!"])
    made = fleet.client.make_token("olga", role="operator")
    olga = FleetClient(fleet.url, token=made.token)
    for ask in (
        olga.webhooks,
        lambda: olga.add_webhook("chat", "https://hooks.example/"),
        lambda: olga.try_webhook("chat"),
        lambda: olga.remove_webhook("chat"),
    ):
        with pytest.raises(FleetError, match="admin"):
            ask()
    assert fleet.client.webhooks() == ()
