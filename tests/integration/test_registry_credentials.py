"""Credentials of a registry: hosts that get credentials on pull and push, with a real registry."""

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgepack.cli import cli
from edgepack.registry.credentials import HOST, PASSWORD, USER
from tests.integration.conftest import Keys
from tests.integration.test_registry import Tokens
from tests.simulators.any_answer import AnyAnswer, http_answer
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.certificates import issue, make_authority
from tests.simulators.web_ways import BCRYPT, Nginx, Server, registry

SECRET = base64.b64encode(b"team:secret")


pytestmark = pytest.mark.usefixtures("no_registry_user")


@pytest.fixture
def bundle(tmp_path: Path, release_keys: Keys) -> ExampleBundle:
    return make_bundle(tmp_path / "one", release_keys[0])


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Server]:
    """Start a registry that requires the password of `team`."""
    (tmp_path / "htpasswd").write_text(f"team:{BCRYPT}\n")
    auth = f"  htpasswd: {{realm: tests, path: {tmp_path}/htpasswd}}\n"
    with registry(tmp_path, auth=auth) as server:
        yield server


def foreign(kind: str, host: str) -> AnyAnswer:
    """Start another host, which answers with its own challenge and returns any token."""
    server = AnyAnswer(lambda _: b"", host)

    def answer(request: bytes) -> bytes:
        if request.startswith(b"GET /token"):
            return http_answer(b'{"token": "any"}')
        asks = f'Bearer realm="{server.url}/token",service="s",scope="repository:tiny:pull"'
        asks = asks if kind == "bearer" else 'Basic realm="yours"'
        return http_answer(b"", "401 Unauthorized", f"WWW-Authenticate: {asks}")

    server.answer = answer
    return server


def front(folder: Path, behind: Server, lines: str) -> Nginx:
    """Start a front server before the registry, with some answers replaced."""
    proxied = (
        f"location / {{ proxy_pass http://127.0.0.1:{behind.port}; client_max_body_size 0;"
        " proxy_set_header Host $http_host; }"
    )
    return Nginx(folder / "front", folder, lines=lines + proxied)


def set_credentials(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    for name, value in ((HOST, host), (USER, "team"), (PASSWORD, "secret")):
        monkeypatch.setenv(name, value)


def run(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def failure(*words: object) -> str:
    result = CliRunner().invoke(cli, [str(word) for word in words])
    assert result.exception is not None, result.output
    return str(result.exception)


def shows_secret(server: AnyAnswer) -> bool:
    return any(SECRET in request or b"uthorization" in request for request in server.requests)


# 127.0.0.1 is the registry's own host, on another port.
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
@pytest.mark.parametrize("kind", ["bearer", "basic"])
def test_a_registrys_password_never_goes_to_the_host_that_a_blob_is_redirected_to(
    kind: str,
    host: str,
    tmp_path: Path,
    private: Server,
    bundle: ExampleBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evil = foreign(kind, host)
    moved = f"location ~ ^/v2/tiny/blobs/sha256 {{ return 307 {evil.url}$request_uri; }}"
    set_credentials(monkeypatch, f"127.0.0.1:{private.port}")
    run("push", bundle.folder, f"oci://127.0.0.1:{private.port}/tiny:1", "--http-unsafe")
    with front(tmp_path, private, moved) as server:
        set_credentials(monkeypatch, f"127.0.0.1:{server.port}")
        target = f"oci://127.0.0.1:{server.port}/tiny:1"
        told = failure("pull", target, "-o", tmp_path / "out", "--http-unsafe")
    assert "requests credentials (HTTP status 401)" in told
    assert f"{host}:{evil.port}" in told
    assert evil.requests, "it was asked for the blob"
    assert not shows_secret(evil)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
def test_a_registrys_password_never_goes_to_the_host_that_takes_an_upload(
    host: str,
    tmp_path: Path,
    private: Server,
    bundle: ExampleBundle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evil = foreign("bearer", host)
    # The registry wants the password first, and then sends the upload elsewhere.
    sent = (
        "location = /v2/tiny/blobs/uploads/ {"
        f' set $place "{evil.url}/upload?state=x"; set $code 202;'
        ' if ($http_authorization = "") { set $place ""; set $code 401; }'
        " add_header Location $place always;"
        " add_header WWW-Authenticate 'Basic realm=\"r\"' always;"
        " if ($code = 401) { return 401; } return 202; }"
    )
    with front(tmp_path, private, sent) as server:
        set_credentials(monkeypatch, f"127.0.0.1:{server.port}")
        target = f"oci://127.0.0.1:{server.port}/tiny:1"
        told = failure("push", bundle.folder, target, "--http-unsafe")
    assert "HTTP status 401" in told
    assert [request[:11] for request in evil.requests] == [b"PUT /upload"]
    assert not shows_secret(evil)


def test_a_registry_without_tls_names_no_token_server_on_another_host(
    tmp_path: Path, private: Server, bundle: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = foreign("bearer", "127.0.0.2")
    asks = f'\'Bearer realm="{evil.url}/token",service="s"\''
    lines = f"location /v2/tiny/ {{ add_header WWW-Authenticate {asks} always; return 401; }}"
    with front(tmp_path, private, lines) as server:
        set_credentials(monkeypatch, f"127.0.0.1:{server.port}")
        target = f"oci://127.0.0.1:{server.port}/tiny:1"
        told = failure("pull", target, "-o", tmp_path / "out", "--http-unsafe")
        assert "names a token server that is not asked" in told
        assert "another host" in told
        assert "token server that is not asked" in failure(
            "push", bundle.folder, target, "--http-unsafe"
        )
    assert evil.requests == []


def test_a_password_of_the_environment_goes_to_the_host_that_it_names(
    tmp_path: Path, private: Server, bundle: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = foreign("basic", "127.0.0.2")
    wanted = f"oci://127.0.0.2:{evil.port}/tiny@sha256:{'ab' * 32}"
    set_credentials(monkeypatch, f"127.0.0.1:{private.port}")
    words = ("-o", tmp_path / "out", "--http-unsafe")
    assert "HTTP status 401" in failure("pull", wanted, *words)
    assert "HTTP status 401" in failure("push", bundle.folder, wanted, "--http-unsafe")
    assert evil.requests
    assert not shows_secret(evil)
    monkeypatch.delenv(HOST)
    told = failure("pull", wanted, *words)
    assert f"set {HOST}=127.0.0.2:{evil.port}" in told
    assert not shows_secret(evil)
    monkeypatch.setenv(HOST, f"127.0.0.1:{private.port}")
    run("push", bundle.folder, f"oci://127.0.0.1:{private.port}/tiny:1", "--http-unsafe")


def test_a_registry_with_tls_names_its_token_server_on_another_host(
    tmp_path: Path, bundle: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path, "ca")
    for file, host in (("server", "127.0.0.1"), ("far", "127.0.0.2")):
        issue(tmp_path, file, authority, host)
    tokens = Tokens(tmp_path, "127.0.0.2")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "far.pem", tmp_path / "far.key")
    tokens.server.socket = context.wrap_socket(tokens.server.socket, server_side=True)
    auth = (
        f"  token:\n    realm: https://127.0.0.2:{tokens.port}/token\n    service: tests\n"
        f"    issuer: tests\n    rootcertbundle: {tmp_path}/tokens-ca.pem\n"
    )
    with ExitStack() as stack:
        stack.callback(tokens.server.server_close)
        stack.callback(tokens.server.shutdown)
        server = stack.enter_context(registry(tmp_path, tls=str(tmp_path / "server"), auth=auth))
        (tmp_path / "docker").mkdir()
        settings = {"auths": {f"127.0.0.1:{server.port}": {"auth": SECRET.decode()}}}
        (tmp_path / "docker/config.json").write_text(json.dumps(settings))
        target = f"oci://127.0.0.1:{server.port}/tiny:1"
        run("push", bundle.folder, target, "--ca-file", tmp_path / "ca.pem")
        run("pull", target, "-o", tmp_path / "out", "--ca-file", tmp_path / "ca.pem")
    assert set(tokens.asked) == {f"Basic {SECRET.decode()}"}
