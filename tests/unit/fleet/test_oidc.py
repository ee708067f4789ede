"""Checks of a provider's tokens: every forgery of an ID token is rejected."""

import base64
import hmac
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

from edgepack.errors import FleetError
from edgepack.fleet.dashboard.render import local_path
from edgepack.fleet.oidc.fetching import ProviderAwayError
from edgepack.fleet.oidc.provider import AGAIN_S, KEEP_S, Attempt, Provider
from edgepack.fleet.oidc.refreshed import LONGEST_PAUSE_S, MAX_WAITERS
from edgepack.fleet.oidc.settings import OidcSettings, read_settings
from edgepack.text import printable
from tests.simulators.oidc_provider import CLIENT, ISSUER, NOW, SECRET, SimulatedProvider

SETTINGS = OidcSettings(
    issuer=ISSUER,
    client_id=CLIENT,
    url="https://fleet.example",
    roles={"admin": ("fleet-admins",), "operator": ("ml-team",)},
)
ATTEMPT = Attempt(state="s" * 43, nonce="n" * 43, verifier="v" * 64, then="/devices")


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def simulated() -> SimulatedProvider:
    return SimulatedProvider()


@pytest.fixture
def provider(simulated: SimulatedProvider, clock: Clock) -> Provider:
    return Provider(SETTINGS, SECRET, get=simulated.get, clock=clock)


def log_in(provider: Provider, simulated: SimulatedProvider) -> Any:
    return provider.finish(ATTEMPT, simulated.visit(provider.login_url(ATTEMPT)))


def test_a_person_comes_in_with_the_role_that_a_claim_gives(
    provider: Provider, simulated: SimulatedProvider
) -> None:
    who = log_in(provider, simulated)
    assert (who.name, who.role) == ("oidc alice@example (u-1)", "operator")
    assert simulated.form["redirect_uri"] == "https://fleet.example/login/oidc/callback"
    pair = base64.b64decode(simulated.headers["Authorization"].removeprefix("Basic "))
    assert pair.decode() == f"{CLIENT}:{SECRET}"
    simulated.claims = {"groups": ["ml-team", "fleet-admins"], "email": None}
    who = log_in(provider, simulated)
    assert (who.name, who.role) == ("oidc u-1", "admin")
    simulated.claims = {"groups": "fleet-admins"}
    assert log_in(provider, simulated).role == "admin"


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"iss": ISSUER + "/"}, "another provider's"),
        ({"iss": "https://evil.example"}, "another provider's"),
        ({"iss": None}, "another provider's"),
        ({"aud": "another"}, "for somebody else"),
        ({"aud": ["another"]}, "for somebody else"),
        ({"aud": None}, "for somebody else"),
        ({"aud": [CLIENT, "another"]}, "given to somebody else"),
        ({"azp": "another"}, "given to somebody else"),
        ({"exp": int(NOW) - 61}, "is over"),
        ({"exp": None}, "has no exp"),
        ({"exp": True}, "has no exp"),
        ({"exp": "later"}, "not the provider's|has no exp"),
        ({"iat": int(NOW) + 61}, "of the future"),
        ({"iat": None}, "has no iat"),
        ({"iat": int(NOW) - 1000, "exp": int(NOW) + 9}, "an old one"),
        ({"exp": float("inf")}, "has no exp that is a time"),
        ({"exp": float("nan")}, "has no exp that is a time"),
        ({"exp": 10**400}, "has no exp that is a time"),
        ({"iat": float("nan")}, "has no iat that is a time"),
        ({"iat": float("-inf")}, "has no iat that is a time"),
        ({"nbf": int(NOW) + 61}, "of the future"),
        ({"nbf": float("nan")}, "has no nbf that is a time"),
        ({"nbf": "now"}, "has no nbf that is a time"),
        ({"sub": None}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"nonce": "another"}, "of another login"),
        ({"nonce": None}, "of another login"),
        ({"groups": []}, "has no role here"),
        ({"groups": None}, "has no role here"),
        ({"groups": {"ml-team": 1}}, "has no role here"),
        ({"groups": [["ml-team"]]}, "has no role here"),
    ],
)
def test_a_token_with_a_wrong_claim_lets_nobody_in(
    provider: Provider, simulated: SimulatedProvider, claims: dict[str, Any], problem: str
) -> None:
    simulated.claims = claims
    with pytest.raises(FleetError, match=problem):
        log_in(provider, simulated)


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        ('"deep":' + "[" * 4000 + "]" * 4000, "is not the provider's"),
        (r'"nonce":"\ud800"', "of another login"),
    ],
)
def test_claims_that_are_hard_to_read_let_nobody_in(
    provider: Provider, simulated: SimulatedProvider, claim: str, problem: str
) -> None:
    def add(token: str) -> str:
        claims = base64.urlsafe_b64decode(token.split(".")[1] + "==").decode()
        content = f"{claims[:-1]},{claim}}}".encode()
        return jws.serialize_compact({"alg": "ES256"}, content, simulated.keys[0])

    simulated.wrap = add
    with pytest.raises(FleetError, match=problem):
        log_in(provider, simulated)


def unsigned(token: str) -> str:
    header = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).rstrip(b"=").decode()
    return f"{header}.{token.split('.')[1]}."


def altered(token: str) -> str:
    header, claims, signature = token.split(".")
    text = base64.urlsafe_b64decode(claims + "==").replace(b"ml-team", b"fleet-admins")
    return f"{header}.{base64.urlsafe_b64encode(text).rstrip(b'=').decode()}.{signature}"


@pytest.mark.parametrize(
    "wrap", [unsigned, altered, lambda _: "", lambda token: token[:-4] + "AAAA"]
)
def test_a_token_that_the_provider_did_not_sign_lets_nobody_in(
    provider: Provider, simulated: SimulatedProvider, wrap: Callable[[str], str]
) -> None:
    simulated.wrap = wrap
    with pytest.raises(FleetError, match="is not the provider's"):
        log_in(provider, simulated)


def test_a_public_key_is_no_shared_secret(provider: Provider, simulated: SimulatedProvider) -> None:
    simulated.keys = [RSAKey.generate_key(2048, {"kid": "k1"})]
    log_in(provider, simulated)
    public = simulated.keys[0].as_pem(private=False)

    def forged(token: str) -> str:
        head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"k1"}').rstrip(b"=").decode()
        signed = f"{head}.{token.split('.')[1]}"
        digest = hmac.digest(public, signed.encode(), "sha256")
        return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"

    simulated.wrap = forged
    with pytest.raises(FleetError, match="is not the provider's"):
        log_in(provider, simulated)


def test_a_key_of_somebody_else_signs_nothing(
    provider: Provider, simulated: SimulatedProvider
) -> None:
    simulated.key = ECKey.generate_key("P-256")
    simulated.header = {"jwk": simulated.key.as_dict(private=False)}
    with pytest.raises(FleetError, match="is not the provider's"):
        log_in(provider, simulated)


def test_keys_that_rotate_are_followed_and_strange_tokens_do_not_have_them_asked_for_each_time(
    provider: Provider, simulated: SimulatedProvider, clock: Clock
) -> None:
    log_in(provider, simulated)
    log_in(provider, simulated)
    assert simulated.asked.count("/keys") == 1
    simulated.keys = [ECKey.generate_key("P-256", {"kid": "k2"})]
    clock.now += AGAIN_S
    log_in(provider, simulated)
    assert simulated.asked.count("/keys") == 2
    simulated.wrap = altered
    for _ in range(5):
        with pytest.raises(FleetError):
            log_in(provider, simulated)
    assert simulated.asked.count("/keys") == 2
    simulated.wrap, simulated.claims = lambda token: token, {"iat": int(NOW + KEEP_S)}
    simulated.claims["exp"] = int(NOW + KEEP_S + 300)
    clock.now += KEEP_S - AGAIN_S
    simulated.keys = [ECKey.generate_key("P-256", {"kid": "k3"})]
    log_in(provider, simulated)  # a key that was withdrawn is forgotten after an hour


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"state": "another"}, "was not begun here"),
        ({"state": ""}, "was not begun here"),
        ({"iss": "https://evil.example"}, "another provider's"),
        ({"error": "access_denied\x1b[2J"}, r"refuses: access_denied\\x1b\[2J"),
        ({"code": "stolen"}, "HTTP status 400"),
    ],
)
def test_an_answer_to_another_login_lets_nobody_in(
    provider: Provider, simulated: SimulatedProvider, answer: dict[str, str], problem: str
) -> None:
    back = simulated.visit(provider.login_url(ATTEMPT)) | answer
    with pytest.raises(FleetError, match=problem):
        provider.finish(ATTEMPT, back)


def test_a_code_is_of_use_to_who_knows_the_verifier_alone(
    provider: Provider, simulated: SimulatedProvider
) -> None:
    back = simulated.visit(provider.login_url(ATTEMPT))
    thief = Attempt(state=ATTEMPT.state, nonce=ATTEMPT.nonce, verifier="w" * 64, then="/")
    with pytest.raises(FleetError, match="HTTP status 400"):
        provider.finish(thief, back)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"issuer": "https://login.example/realm/"}, "calls itself"),
        ({"issuer": "https://evil.example"}, "calls itself"),
        ({"token_endpoint": None}, "does not say where"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "not an https:// URL"),
    ],
)
def test_a_provider_that_is_another_one_is_not_asked(
    provider: Provider, simulated: SimulatedProvider, document: dict[str, Any], problem: str
) -> None:
    simulated.document = document
    with pytest.raises(FleetError, match=problem):
        provider.login_url(ATTEMPT)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('issuer = "http://login.example"\n', "not an https:// URL"),
        ('issuer = "https://x"\nsecret = "x"\n', "secret"),
        ('issuer = "https://x"\nscopes = ["email"]\n', "takes the scope openid"),
        ("issuer = 3\n", "issuer"),
        ("issuer =", "not valid TOML"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "oidc.toml"
    path.write_text(f'client_id = "c"\nurl = "https://f"\n{text}\n[roles]\nviewer = ["*"]\n')
    with pytest.raises(FleetError, match=problem):
        read_settings(path)


def test_a_failure_of_the_provider_is_kept_for_a_while_that_doubles(
    simulated: SimulatedProvider, clock: Clock
) -> None:
    asked: list[float] = []

    def get(*_: Any) -> dict[str, Any]:
        asked.append(clock.now)
        raise ProviderAwayError("the provider gives no answer", found_in=ISSUER)

    provider = Provider(SETTINGS, SECRET, get=get, clock=clock)
    for _ in range(300):
        with pytest.raises(ProviderAwayError, match="no answer"):
            provider.login_url(ATTEMPT)
        clock.now += 1
    assert len(asked) == 8
    clock.now += LONGEST_PAUSE_S
    provider._get = simulated.get
    simulated.claims = {"iat": int(clock.now), "exp": int(clock.now) + 300}
    assert log_in(provider, simulated).role == "operator"


def test_many_threads_ask_the_provider_once_and_few_wait_for_it(
    simulated: SimulatedProvider, clock: Clock
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def get(*arguments: Any) -> dict[str, Any]:
        begun.set()
        assert answered.wait(400)
        return simulated.get(*arguments)

    provider = Provider(SETTINGS, SECRET, get=get, clock=clock)
    with ThreadPoolExecutor(20) as pool:
        first = pool.submit(provider.login_url, ATTEMPT)
        assert begun.wait(400)
        others = [pool.submit(provider.login_url, ATTEMPT) for _ in range(19)]
        refused = list(islice(as_completed(others, 30), 19 - MAX_WAITERS))
        for one in refused:
            with pytest.raises(ProviderAwayError, match="is being asked"):
                one.result()
        answered.set()
        waited = [one.result() for one in others if one not in refused]
    assert [first.result()] * MAX_WAITERS == waited
    assert len(simulated.asked) == 1


def test_codes_are_not_exchanged_while_the_token_endpoint_is_away(
    simulated: SimulatedProvider, clock: Clock
) -> None:
    asked: list[str] = []

    def get(url: str, *arguments: Any) -> dict[str, Any]:
        asked.append(url)
        if url.endswith("/token"):
            raise ProviderAwayError("the provider gives no answer", found_in=url)
        return simulated.get(url, *arguments)

    provider = Provider(SETTINGS, SECRET, get=get, clock=clock)
    for _ in range(10):
        with pytest.raises(ProviderAwayError):
            log_in(provider, simulated)
    assert sum(url.endswith("/token") for url in asked) == 1


@pytest.mark.parametrize(
    ("then", "shown"),
    [
        ("/devices", "/devices"),
        ("/models/a b", "/models/a%20b"),
        ("/devices?group=a&x=%2F", "/devices?group=a&x=%2F"),
        ("", "/"),
        ("devices", "/"),
        ("https://evil.test/", "/"),
        ("//evil.test/x", "/"),
        ("/\\evil.test/x", "/%5Cevil.test/x"),
        ("/\x1b.evil.test/x", "/%1B.evil.test/x"),
        ("/\t/evil.test/x", "/%09/evil.test/x"),
        ("/\n/evil.test", "/%0A/evil.test"),
        ("\x00//evil.test", "/"),
        ("/\u202e.evil.test", "/%E2%80%AE.evil.test"),
        ("/\udcff.evil.test", "/?.evil.test"),
    ],
)
def test_a_login_leads_to_a_path_of_the_dashboard_alone(then: str, shown: str) -> None:
    path = local_path(then)
    assert path == shown == printable(path) == local_path(path)
    assert urljoin("https://fleet.example/login", path).startswith("https://fleet.example/")
