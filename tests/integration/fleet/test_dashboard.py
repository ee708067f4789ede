"""The dashboard without a browser: access, texts of pages, and escaping."""

import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.wire.orders import BundleRef
from edgepack.wire.reports import Active, Choice, Preparation, ProbeResult, Reported, ReportedModel
from edgepack.wire.telemetry import Event
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve
from tests.integration.fleet.dashboard import Visitor
from tests.simulators.signing import Speaker
from tests.simulators.world import make_facts

STEERING = ("\u202e", "\x1b", "\x00", "\u2066")
HOSTILE = "</p><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}" + "".join(STEERING)
"""Breaks out of text, of an attribute, of a template, and out of the direction of writing."""


def hostile_report(sequence: int) -> Reported:
    bundle = BundleRef(name=HOSTILE, version=HOSTILE, release=1, digest=HOSTILE)
    probe = ProbeResult(
        variant=HOSTILE,
        provider=HOSTILE,
        right=False,
        because=HOSTILE,
        preparation=Preparation(right=None, because=f"Golden meters {HOSTILE}"),
    )
    choice = Choice(
        wanted=HOSTILE,
        chosen=HOSTILE,
        provider=HOSTILE,
        because=HOSTILE,
        is_fallback=True,
        probes=(probe,),
        rejected={HOSTILE: HOSTILE},
    )
    active = Active(bundle=bundle, choice=choice, since=1.0)
    failed = ReportedModel(
        state="ROLLED_BACK", because=HOSTILE, sequence=sequence, acted_sequence=sequence
    )
    facts = msgspec.structs.replace(
        make_facts(arch=HOSTILE), hardware_class=HOSTILE, cpu_model=HOSTILE, os=HOSTILE
    )
    return Reported(
        online=True,
        at=1.0,
        boot="b",
        facts=facts,
        sequence=sequence,
        models={
            "digits": msgspec.structs.replace(failed, active=active),
            HOSTILE: ReportedModel(state=HOSTILE, because=HOSTILE, active=active, rollout=HOSTILE),
        },
        warnings=(HOSTILE,),
    )


def say(folder: Path, reported: Reported) -> None:
    event = Event(
        at=1.0,
        kind=HOSTILE,
        bundle=HOSTILE,
        from_state=HOSTILE,
        to_state=HOSTILE,
        because=HOSTILE,
        rollout=HOSTILE,
    )
    with Speaker(folder, reported.boot) as device:
        device.greet()
        device.say("reported", reported)
        device.say("event", event)


@pytest.fixture
def fleet(serve: Serve, make_bundle: MakeBundle, tmp_path: Path) -> FleetProcess:
    """Return a fleet of a single device that reports hostile text about a failed rollout."""
    running = serve()
    running.client.enroll("cam-1", group="g", folder=tmp_path / "cam-1", labels={"site": "<b>"})
    release = running.client.publish(make_bundle())
    to = Selector(kind="group", group="g")
    running.client.start_rollout(release, to, RolloutSettings(waves="100%", min_sample=1))
    running.wait_until(lambda: running.rollout("r1").counts == {"OFFERED": 1}, "it is offered")
    say(tmp_path / "cam-1", hostile_report(1))
    running.wait_until(lambda: running.rollout("r1").state == "PAUSED", "the rollout is paused")
    return running


def pages(fleet: FleetProcess) -> Iterator[str]:
    digest = fleet.rollout("r1").bundle.digest
    yield from ("/", "/devices", "/devices/cam-1", "/rollouts", "/rollouts/r1", "/models")
    yield from ("/devices?standing=failing&group=g", "/rollouts/r1?state=FAILED&wave=1")
    yield from ("/rollouts?state=PAUSED&model=digits", "/models/digits")
    yield from (f"/rollouts/r1/{act}" for act in ("pause", "resume", "abort", "rollback"))
    yield f"/rollouts/new?release={digest}&to=group&group=g&look=1"
    yield f"/releases/{digest}/report"


def token(fleet: FleetProcess) -> str:
    return (fleet.data / "token").read_text()


def test_nothing_hostile_bites_and_every_page_says_what_it_may_load(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in(token(fleet))
    shown = 0
    for path in pages(fleet):
        status, headers, text = visitor.get(path)
        assert status in (200, 422), (path, text)
        assert "<script>alert" not in text, path
        assert "<img" not in text, path
        assert "{%" not in text, path
        assert not re.search(r">49\b", text), path
        assert not any(one in text for one in STEERING), path
        assert " style=" not in text, path
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        shown += "&lt;script&gt;alert(1)" in text
    assert shown >= 4, "what the device said is shown, harmless"
    device = visitor.get("/devices/cam-1").text
    assert "<dt>Golden pictures</dt>" in device
    assert "Golden meters" in device
    assert "Problems" in device
    assert "&#34;&#39;&gt;&lt;img src=x onerror=alert(2)&gt;{{7*7}}" in device, "in full"


def test_hostile_links_are_answered_in_words(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in(token(fleet))
    for path in (
        "/devices/%3Cscript%3E",
        "/devices?where=%3Cscript%3E",
        "/devices?standing=%00&online=%27&digest=%22&after=%ff",
        "/rollouts/r1%27",
        "/rollouts/r1/explode",
        "/rollouts/r99999999999999999",
        "/rollouts/r1?wave=-1&state=%3Cb%3E&after=%00",
        "/rollouts/new?look=1&soak_s=nan&release=x&to=where&where=%22",
        "/rollouts/new?look=1&max_failed_share=1e999&waves=x",
        "/models/..%2F..%2Fetc",
        "/releases/..%2Ftoken/report.html",
        "/assets/..%2F__init__.py",
    ):
        status, _, text = visitor.get(path)
        assert status in (200, 404, 422), (path, status)
        assert "<script>" not in text
        assert "Traceback" not in text
    log = (fleet.data.parent / "serve.log").read_text()
    assert "Traceback" not in log


def test_nobody_comes_in_without_a_token_or_a_link_that_still_holds(fleet: FleetProcess) -> None:
    stranger = Visitor(fleet.url)
    for path in pages(fleet):
        status, headers, text = stranger.get(path)
        assert (status, text) == (303, ""), path
        assert headers["location"].startswith("/login")
    assert stranger.post("/rollouts/r1/abort", {}).status == 303
    assert "does not know this token" in stranger.post("/login", {"token": "wrong"}).text
    assert not stranger.cookies
    link = fleet.client.login_link().url.removeprefix(fleet.url)
    assert stranger.get(link).status == 303
    assert stranger.get("/").status == 200
    assert "used already" in Visitor(fleet.url).get(link).text
    session = dict(stranger.cookies)
    stranger.post("/logout", {"form_token": stranger.form_token("/")})
    stranger.cookies = session
    assert stranger.get("/").status == 303, "the session has ended, not only the cookie"


def test_the_session_lies_in_a_cookie_that_no_script_and_no_other_site_reaches(
    fleet: FleetProcess,
) -> None:
    answer = Visitor(fleet.url).post("/login", {"token": token(fleet), "then": "//evil.example"})
    assert answer.headers["location"] == "/"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token(fleet) not in cookie


def test_a_form_from_elsewhere_does_nothing(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in(token(fleet))
    good = {"form_token": visitor.form_token("/rollouts/r1/abort")}
    assert visitor.post("/rollouts/r1/abort", {}).status == 422
    assert visitor.post("/rollouts/r1/abort", {"form_token": "0" * 64}).status == 422
    assert "another site" in visitor.post("/rollouts/r1/abort", good, Origin="http://evil").text
    assert fleet.rollout("r1").state == "PAUSED"
    assert visitor.post("/rollouts/r1/abort", good, Origin=fleet.url).status == 303
    assert fleet.rollout("r1").state == "ABORTED"


def test_the_reason_of_a_failure_is_one_click_from_the_first_page(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in(token(fleet))
    first = visitor.get("/").text
    assert 'href="/devices/cam-1"' in first
    assert 'href="/rollouts/r1"' in first
    assert "1 of 1 decided device" in first, "why the rollout stands still"


def test_what_moves_is_sent_again_by_itself(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in(token(fleet))
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    connection = HTTPConnection("127.0.0.1", fleet.port, timeout=400)
    headers = {"Accept": "text/event-stream", "Cookie": cookie}
    connection.request("GET", "/rollouts/r1", headers=headers)
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")

    def event() -> str:
        lines = iter(answer.readline, b"\n")
        return b"".join(lines).decode()

    assert "PAUSED" in event()
    fleet.client.abort_rollout("r1")
    assert "ABORTED" in event()
    assert fleet.stop() == 0, "nobody who looks keeps the fleet from stopping"
    connection.close()


def test_a_look_at_the_api_needs_its_token(fleet: FleetProcess) -> None:
    visitor: Any = Visitor(fleet.url).log_in(token(fleet))
    assert visitor.get("/v1/info").status == 401, "a cookie is not a token"
