"""Access by tokens with roles, for programs and for the dashboard; https."""

import datetime
import ipaddress
import sqlite3
import ssl
from pathlib import Path
from urllib.parse import urlencode

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from edgepack.errors import FleetError
from edgepack.fleet import FleetClient
from edgepack.fleet.client.connection import CA_VARIABLE
from edgepack.fleet.dashboard.routes import dashboard_routes
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.server.serve import serve as run
from edgepack.fleet.server.settings import ServeSettings
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve, edgepack
from tests.integration.fleet.dashboard import Visitor

CAMERAS = Selector(kind="group", group="cameras")


@pytest.fixture
def fleet(serve: Serve, make_bundle: MakeBundle, tmp_path: Path) -> FleetProcess:
    running = serve()
    running.client.enroll("cam-1", group="cameras", folder=tmp_path / "cam-1")
    running.client.publish(make_bundle())
    return running


def test_the_form_of_a_new_rollout_sets_what_the_command_sets(fleet: FleetProcess) -> None:
    visitor = Visitor(fleet.url).log_in((fleet.data / "token").read_text())
    form = {"release": fleet.client.releases()[0].bundle.digest, "group": "cameras"}
    form |= {"window": "mon 02:00-05:00", "gate_p95": "1.5", "gate_drift": "off"}
    form |= {"approve_waves": "on", "max_per_site": "3", "split_by": "hardware"}
    query = urlencode({**form, "look": "1"})
    token = visitor.form_token(f"/rollouts/new?{query}")
    answer = visitor.post("/rollouts/new", {**form, "form_token": token})
    assert answer.status == 303, answer.text
    started = fleet.rollout("r1")
    settings = started.settings
    assert (settings.window, settings.approve_waves) == ("mon 02:00-05:00", True)
    assert settings.max_per_site == 3
    gates = {gate.name: gate.threshold for gate in started.gates}
    assert (gates["p95"], gates["drift"], gates["p99"]) == (1.5, None, 1.25)
    refused = visitor.get(f"/rollouts/new?{query}&gate_p99=much")
    assert "&#39;much&#39; is not a threshold of the gate p99" in refused.text


def test_a_role_may_do_its_own_and_no_more(
    fleet: FleetProcess, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    viewer, operator = (
        FleetClient(fleet.url, token=fleet.client.make_token(role, role=role).token)
        for role in ("viewer", "operator")
    )
    assert len(viewer.devices()) == 1
    with pytest.raises(FleetError, match="token viewer is a viewer, and this takes the role oper"):
        viewer.start_rollout(viewer.releases()[0], CAMERAS)
    started = operator.start_rollout(operator.releases()[0], CAMERAS)
    for client in (viewer, operator):
        with pytest.raises(FleetError, match="takes the role admin"):
            client.enroll("cam-2", group="cameras", folder=tmp_path / "cam-2")
        with pytest.raises(FleetError, match="takes the role admin"):
            client.make_token("more", role="admin")
    with pytest.raises(FleetError, match="takes the role operator"):
        viewer.abort_rollout(started.rollout)
    entries = fleet.client.audit()
    acts = {(entry.actor, entry.action) for entry in entries}
    assert ("token operator", "rollout.start") in acts
    assert ("token", "token.make") in acts
    assert all("viewer" not in entry.actor for entry in entries)


def test_a_revoked_token_and_its_sessions_end_at_once(fleet: FleetProcess) -> None:
    made = fleet.client.make_token("bob", role="viewer")
    visitor = Visitor(fleet.url).log_in(made.token)
    page = visitor.get("/rollouts").text
    assert "token bob, viewer" in page
    assert "Start a rollout" not in page
    form = {"form_token": visitor.form_token("/rollouts")}
    assert "takes the role operator" in visitor.post("/rollouts/new", form).text
    fleet.client.revoke_token("bob")
    assert visitor.get("/").status == 303
    with pytest.raises(FleetError, match="does not know this token"):
        FleetClient(fleet.url, token=made.token).devices()


def test_a_token_that_is_over_lets_nobody_in(fleet: FleetProcess) -> None:
    made = fleet.client.make_token("brief", role="viewer", valid_s=0.001)
    with pytest.raises(FleetError, match="does not know this token"):
        FleetClient(fleet.url, token=made.token).devices()


def test_no_secret_is_kept(fleet: FleetProcess) -> None:
    made = fleet.client.make_token("bob", role="viewer")
    visitor = Visitor(fleet.url).log_in(made.token)
    with sqlite3.connect(fleet.data / "fleet.db") as database:
        kept = "\n".join(database.iterdump())
    (cookie,) = visitor.cookies.values()
    assert "bob" in kept
    for secret in (made.token, cookie, (fleet.data / "token").read_text()):
        assert secret not in kept
    assert made.token not in (fleet.data.parent / "serve.log").read_text()


def test_the_commands_make_list_and_revoke(fleet: FleetProcess) -> None:
    made = edgepack(fleet, "fleet", "tokens", "make", "alice", "--role", "operator", "--days", "9")
    secret = made.stdout.strip()
    assert len(FleetClient(fleet.url, token=secret).devices()) == 1
    again = edgepack(fleet, "fleet", "tokens", "make", "alice", "--role", "viewer")
    assert "there is a token 'alice' already" in again.stderr
    listed = edgepack(fleet, "fleet", "tokens").stdout
    assert "alice" in listed
    assert "operator" in listed
    assert secret not in listed
    assert "alice is revoked" in edgepack(fleet, "fleet", "tokens", "revoke", "alice").stdout
    assert "no token but the fleet's own" in edgepack(fleet, "fleet", "tokens").stdout


def test_by_https_the_cookie_travels_by_https_alone(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv(CA_VARIABLE, str(certificate))
    fleet = serve("--tls-cert", str(certificate), "--tls-key", str(key), url_scheme="https")
    trusting = ssl.create_default_context(cafile=str(certificate))
    link = fleet.client.login_link().url
    assert link.startswith("https://127.0.0.1:")
    visitor = Visitor(fleet.url, trusting)
    assert "Secure" in visitor.get(link.removeprefix(fleet.url)).headers["set-cookie"]
    monkeypatch.delenv(CA_VARIABLE)
    with pytest.raises(FleetError, match="certificate verify failed"):
        fleet.client.info()


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    certificate, _ = write_certificate(tmp_path)
    settings = ServeSettings(data=tmp_path / "fleet", tls_cert=certificate)
    with pytest.raises(FleetError, match="https takes a certificate and its key"):
        run(settings, dashboard_routes, lambda *_: None)
    both = msgspec.structs.replace(settings, tls_key=certificate)
    with pytest.raises(FleetError, match="the certificate cannot be used"):
        run(both, dashboard_routes, lambda *_: None)
    assert not (tmp_path / "fleet").exists(), "it was refused before anything was made"


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fleet")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "api.crt", folder / "api.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
