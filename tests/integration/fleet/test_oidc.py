"""Users log in at a real provider of OpenID Connect, as a process; the provider's claims give the
role.
"""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from edgepack.errors import FleetError
from edgepack.fleet import FleetClient
from tests.integration.fleet.conftest import FleetProcess, Serve
from tests.integration.fleet.dashboard import Answer, Visitor
from tests.simulators.ports import free_port
from tests.simulators.waiting import wait_until

PROGRAM = Path(sys.executable).with_name("oidc-provider-mock")
USERS = (
    {"sub": "alice", "email": "alice@example", "groups": ["ml-team"]},
    {"sub": "root", "groups": ["fleet-admins"]},
    {"sub": "mallory", "groups": ["strangers"]},
)


@pytest.fixture
def issuer() -> Iterator[str]:
    port = free_port()
    users = [word for user in USERS for word in ("--user-claims", json.dumps(user))]
    process = subprocess.Popen(
        [PROGRAM, "--port", str(port), *users],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, "the provider ended"
        try:
            urllib.request.urlopen(f"{url}/.well-known/openid-configuration", timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(answers, "the provider answers")
    yield url
    process.terminate()
    process.wait(400)


@pytest.fixture
def fleet(serve: Serve, issuer: str, tmp_path: Path) -> FleetProcess:
    settings = tmp_path / "oidc.toml"
    port = free_port()
    (tmp_path / "secret").write_text("s3cret\n")
    settings.write_text(
        f'issuer = "{issuer}"\nclient_id = "edgepack"\nclient_secret_file = "secret"\n'
        f'url = "http://127.0.0.1:{port}"\ntitle = "Example Inc."\n'
        '[roles]\nadmin = ["fleet-admins"]\noperator = ["ml-team"]\n'
    )
    return serve("--oidc", str(settings), port=port)


def consent(visitor: Visitor, person: str, then: str = "/") -> str:
    """Go to the provider and log in there; return the path of the redirect back."""
    away = visitor.get(f"/login/oidc?{urlencode({'then': then})}")
    assert away.status == 303, away.text
    place = urlsplit(away.headers["location"])
    provider = Visitor(f"{place.scheme}://{place.netloc}")
    back = provider.post(f"{place.path}?{place.query}", {"sub": person})
    assert back.status in (302, 303), back.text
    found = urlsplit(back.headers["location"])
    return f"{found.path}?{found.query}"


def log_in(visitor: Visitor, person: str, then: str = "/") -> Answer:
    return visitor.get(consent(visitor, person, then))


def test_who_logs_in_at_the_provider_has_the_role_of_a_group(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url)
    assert "Log in by Example Inc." in visitor.get("/login").text
    answer = log_in(visitor, "alice", "/devices")
    assert answer.status == 200, answer.text
    assert 'content="0; url=/devices"' in answer.text
    assert "oidc alice@example (alice)" in answer.text
    page = visitor.get("/devices")
    assert page.status == 200
    assert "alice@example" in page.text
    assert visitor.get("/rollouts/new").status in (200, 404), "an operator may begin rollouts"
    token = re.search(r'name="form_token" value="([0-9a-f]{64})"', page.text)
    assert token is not None
    assert visitor.post("/logout", {"form_token": token[1]}).status == 303
    assert visitor.get("/devices").status == 303, "the session is over"


def test_who_has_no_role_or_did_not_begin_the_login_stays_out(fleet: FleetProcess) -> None:
    stranger = Visitor(fleet.url)
    answer = log_in(stranger, "mallory")
    assert answer.status == 403
    assert "mallory has no role here" in answer.text
    assert "edgepack_session" not in stranger.cookies
    victim = Visitor(fleet.url)
    path = consent(stranger, "root")
    answer = victim.get(path)
    assert answer.status == 403
    assert "was not begun in this browser" in answer.text
    victim.get("/login/oidc")
    assert "was not begun here" in victim.get(path).text
    assert stranger.get(path).status == 200
    assert stranger.get(path).status == 403, "an answer is good once"


def test_an_id_token_is_a_bearer_of_the_api(fleet: FleetProcess, issuer: str) -> None:
    def token_of(person: str) -> str:
        redirect = f"{fleet.url}/login/oidc/callback"
        asked = {"response_type": "code", "client_id": "edgepack", "redirect_uri": redirect}
        asked |= {"scope": "openid profile email", "nonce": person, "state": "x"}
        back = Visitor(issuer).post(f"/oauth2/authorize?{urlencode(asked)}", {"sub": person})
        (code,) = parse_qs(urlsplit(back.headers["location"]).query)["code"]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect}
        form |= {"client_id": "edgepack", "client_secret": "s3cret"}
        token: str = json.loads(Visitor(issuer).post("/oauth2/token", form).text)["id_token"]
        return token

    root = FleetClient(fleet.url, token=token_of("root"))
    assert root.tokens() == ()
    root.make_token("bob", role="viewer")
    acts = [entry.actor for entry in root.audit() if entry.action == "token.make"]
    assert acts == ["oidc root"]
    alice = FleetClient(fleet.url, token=token_of("alice"))
    assert alice.info().devices == 0
    with pytest.raises(FleetError, match="operator"):
        alice.tokens()
    for token in (token_of("mallory"), token_of("root")[:-6] + "AAAAAA", "x" * 300):
        with pytest.raises(FleetError, match="token"):
            FleetClient(fleet.url, token=token).info()


@pytest.mark.parametrize("is_dripping", [False, True], ids=["silent", "dripping"])
def test_a_silent_provider_does_not_stop_the_api(
    serve: Serve, tmp_path: Path, is_dripping: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(61) as pool:
        stopping = threading.Event()
        dripping = pool.submit(drip, listener, stopping) if is_dripping else None
        settings, port = tmp_path / "oidc.toml", free_port()
        settings.write_text(
            f'issuer = "http://127.0.0.1:{listener.getsockname()[1]}"\nclient_id = "edgepack"\n'
            f'url = "http://127.0.0.1:{port}"\n[roles]\nviewer = ["*"]\n'
        )
        fleet = serve("--oidc", str(settings), port=port)
        bearer = {"Authorization": f"Bearer {'x' * 300}"}
        asked = [
            pool.submit(Visitor(fleet.url).get, path, **bearer)
            for path in 20 * ("/v1/info", "/login/oidc", "/login/oidc/callback")
        ]
        admin = fleet.client
        answered_first = 0
        while not all(one.done() for one in asked):
            assert admin.info().devices == 0
            answered_first += 1
        assert answered_first > 0
        statuses = {one.result().status for one in asked}
        assert statuses == {403, 422, 502}
        again = Visitor(fleet.url).get("/login/oidc")
        assert again.status == 502
        assert "asked again in" in again.text
        stopping.set()
        if dripping is not None:
            dripping.result()


def drip(listener: socket.socket, stopping: threading.Event) -> None:
    """Answer each connection with a byte now and then, never with a whole head."""
    listener.settimeout(0.2)
    opened: list[socket.socket] = []
    while not stopping.wait(0.2):
        with contextlib.suppress(TimeoutError):
            opened.append(listener.accept()[0])
        for one in opened:
            with contextlib.suppress(OSError):
                one.send(b"H")
    for one in opened:
        one.close()


def test_a_login_does_not_lead_to_another_site(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url)
    answer = log_in(visitor, "alice", "/\x1b.evil.test/x")
    assert answer.status == 200
    assert 'content="0; url=/%1B.evil.test/x"' in answer.text
    assert "\\x1b" not in answer.text
