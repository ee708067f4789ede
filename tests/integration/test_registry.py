"""Bundles in a real OCI registry: with passwords, with tokens, damaged, and not there."""

import base64
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from edgepack.bundle.archive import pack
from edgepack.cli import cli
from edgepack.registry.artifact import ARTIFACT_TYPE, make_artifact
from edgepack.registry.client import MANIFEST_TYPE, Registry
from edgepack.registry.credentials import HOST, PASSWORD, USER
from tests.integration.conftest import Keys
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.certificates import issue, make_authority
from tests.simulators.web_ways import BCRYPT, Nginx, Server, registry

pytestmark = pytest.mark.usefixtures("no_registry_user")


@pytest.fixture
def bundle(tmp_path: Path, release_keys: Keys) -> ExampleBundle:
    return make_bundle(tmp_path / "one", release_keys[0], hooks={"staged.before.d/a": "exit 0"})


@pytest.fixture
def open_registry(tmp_path: Path) -> Iterator[Server]:
    """Start a registry with http and free access."""
    with registry(tmp_path) as server:
        yield server


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def done(*words: object) -> dict[str, object]:
    result = run(*words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    found: dict[str, object] = json.loads(result.stdout)
    return found


def refused(*words: object) -> str:
    result = run(*words)
    assert result.exception is not None, result.output
    return str(result.exception)


def same_files(one: Path, two: Path) -> bool:
    def content(folder: Path) -> dict[str, tuple[bytes, int]]:
        return {
            str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
            for path in folder.rglob("*")
            if path.is_file()
        }

    found, expected = content(one), content(two)
    return {k: v[0] for k, v in found.items()} == {k: v[0] for k, v in expected.items()}


def test_a_bundle_comes_back_as_it_went_in_both_forms(
    tmp_path: Path, open_registry: Server, bundle: ExampleBundle, release_keys: Keys
) -> None:
    target = f"oci://127.0.0.1:{open_registry.port}/models/tiny:1.1.0"
    archive = tmp_path / "one.edgepack"
    pack(bundle.folder, archive)
    first = done("push", archive, target, "--http-unsafe")
    assert first["digest"] == bundle.ref.digest
    assert first["sent_bytes"] == first["size_bytes"]
    again = done("push", bundle.folder, target, "--http-unsafe")
    assert again["sent_bytes"] == 0
    assert again["reference"] == first["reference"]

    for source in (target, first["reference"]):
        output = tmp_path / f"out-{len(str(source))}"
        key = ("--key", release_keys[1])
        pulled = done("pull", source, "-o", output, *key, "--http-unsafe")
        assert pulled["digest"] == bundle.ref.digest
        assert pulled["verified"] is True
        assert pulled["reference"] == first["reference"]
        assert same_files(output, bundle.folder)
        assert (output / "hooks/staged.before.d/a").stat().st_mode & 0o111
    back = tmp_path / "back.edgepack"
    told = run("pull", target, "-o", back, "--http-unsafe")
    assert "(not verified)" in told.stdout
    assert "give --key" in told.stderr
    assert back.read_bytes() == archive.read_bytes()
    assert not list(tmp_path.glob(".*")), "nothing is left behind"


def test_a_second_release_sends_what_is_new(
    tmp_path: Path, open_registry: Server, bundle: ExampleBundle, release_keys: Keys
) -> None:
    where = f"oci://127.0.0.1:{open_registry.port}/models/tiny"
    done("push", bundle.folder, f"{where}:1.1.0", "--http-unsafe")
    second = make_bundle(tmp_path / "two", release_keys[0], release=2)
    sent = done("push", second.folder, f"{where}:1.2.0", "--http-unsafe")
    golden = (second.folder / "golden/golden.npz").stat().st_size
    assert isinstance(sent["size_bytes"], int)
    assert sent["sent_bytes"] in (sent["size_bytes"], sent["size_bytes"] - golden)
    url = f"http://127.0.0.1:{open_registry.port}/v2/models/tiny/manifests/1.2.0"
    manifest = json.loads(fetch(url))
    assert manifest["artifactType"] == ARTIFACT_TYPE
    assert manifest["mediaType"] == MANIFEST_TYPE
    assert manifest["annotations"]["dev.edgepack.bundle.digest"] == second.ref.digest


def fetch(url: str) -> bytes:
    import urllib.request

    request = urllib.request.Request(url, headers={"Accept": MANIFEST_TYPE})
    with urllib.request.urlopen(request, timeout=400) as answer:
        content: bytes = answer.read()
    return content


def test_a_registry_with_tls_and_passwords(
    tmp_path: Path, bundle: ExampleBundle, release_keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    (tmp_path / "htpasswd").write_text(f"team:{BCRYPT}\n")
    auth = f"  htpasswd: {{realm: tests, path: {tmp_path}/htpasswd}}\n"
    with registry(tmp_path, tls=str(tmp_path / "server"), auth=auth) as server:
        host = f"127.0.0.1:{server.port}"
        words = ("push", bundle.folder, f"oci://{host}/tiny:1", "--ca-file", tmp_path / "ca.pem")
        assert "certificate is not trusted" in refused(*words[:3])
        told = refused(*words)
        assert "the registry does not allow this (HTTP status 401)" in told
        assert f"try: docker login {host}, or set {HOST}={host}, {USER} and {PASSWORD}" in told

        monkeypatch.setenv(HOST, host)
        monkeypatch.setenv(USER, "team")
        monkeypatch.setenv(PASSWORD, "wrong")
        told = refused(*words)
        assert "HTTP status 401" in told
        assert "wrong" not in told

        monkeypatch.setenv(PASSWORD, "secret")
        done(*words)
        monkeypatch.delenv(USER)
        monkeypatch.delenv(PASSWORD)
        (tmp_path / "docker").mkdir()
        secret = base64.b64encode(b"team:secret").decode()
        settings = {"auths": {host: {"auth": secret}}, "credsStore": "", "HttpHeaders": {}}
        (tmp_path / "docker/config.json").write_text(json.dumps(settings))
        pulled = done(
            *("pull", f"oci://{host}/tiny:1", "-o", tmp_path / "out", "--key", release_keys[1]),
            *("--ca-file", tmp_path / "ca.pem"),
        )
        assert pulled["digest"] == bundle.ref.digest
        assert "HTTP status 400" in refused(*words, "--http-unsafe")


class Tokens:
    """A server of bearer tokens that a real registry takes."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        issue(folder, "tokens", make_authority(folder, "tokens-ca"), "tokens")
        content = (folder / "tokens.key").read_bytes()
        key = serialization.load_pem_private_key(content, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key
        pem = (folder / "tokens.pem").read_bytes()
        self._certificate = x509.load_pem_x509_certificate(pem)
        self.asked: list[str] = []
        tokens = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                tokens.asked.append(self.headers.get("Authorization", ""))
                body = tokens.answer(parse_qs(urlsplit(self.path).query))
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((host, 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, query: dict[str, list[str]]) -> bytes:
        access = []
        for scope in query.get("scope", []):
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        claims = {
            "iss": "tests",
            "sub": "team",
            "aud": query["service"][0],
            "access": access,
            "nbf": now - 60,
            "iat": now,
            "exp": now + 300,
            "jti": str(now),
        }
        signed = b".".join(_b64(json.dumps(part).encode()) for part in (header, claims))
        r, s = decode_dss_signature(self.key.sign(signed, ec.ECDSA(hashes.SHA256())))
        token = signed + b"." + _b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
        return json.dumps({"token": token.decode()}).encode()


def _b64(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def test_a_registry_that_wants_tokens(
    tmp_path: Path, bundle: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Tokens(tmp_path)
    auth = (
        f"  token:\n    realm: http://127.0.0.1:{tokens.port}/token\n    service: tests\n"
        f"    issuer: tests\n    rootcertbundle: {tmp_path}/tokens-ca.pem\n"
    )
    monkeypatch.setenv(USER, "team")
    monkeypatch.setenv(PASSWORD, "secret")
    with registry(tmp_path, auth=auth) as server:
        monkeypatch.setenv(HOST, f"127.0.0.1:{server.port}")
        target = f"oci://127.0.0.1:{server.port}/tiny:1"
        done("push", bundle.folder, target, "--http-unsafe")
        pulled = done("pull", target, "-o", tmp_path / "out", "--http-unsafe")
        assert pulled["digest"] == bundle.ref.digest
    tokens.server.shutdown()
    tokens.server.server_close()
    assert set(tokens.asked) == {"Basic " + base64.b64encode(b"team:secret").decode()}


def _blob(folder: Path, sha256: str) -> Path:
    return folder / f"registry/docker/registry/v2/blobs/sha256/{sha256[:2]}/{sha256}/data"


def test_what_rotted_in_the_registry_is_refused(
    tmp_path: Path, open_registry: Server, bundle: ExampleBundle
) -> None:
    target = f"oci://127.0.0.1:{open_registry.port}/tiny:1"
    done("push", bundle.folder, target, "--http-unsafe")
    content = (bundle.folder / "model/cpu/model.onnx").read_bytes()
    path = _blob(tmp_path, hashlib.sha256(content).hexdigest())
    for spoilt in (content[:-1] + b"?", content[:-7], content + b"more"):
        path.write_bytes(spoilt)
        told = refused("pull", target, "-o", tmp_path / "out", "--http-unsafe")
        assert "other bytes than" in told or "sends more than" in told or "breaks off" in told
        assert not (tmp_path / "out").exists()


def test_a_bundle_of_another_key_is_refused_before_its_files_are_fetched(
    tmp_path: Path, open_registry: Server, bundle: ExampleBundle
) -> None:
    from edgepack.bundle.keys import generate_key, write_key_pair

    stranger = write_key_pair(generate_key(), tmp_path / "stranger")[1]
    target = f"oci://127.0.0.1:{open_registry.port}/tiny:1"
    done("push", bundle.folder, target, "--http-unsafe")
    content = (bundle.folder / "model/cpu/model.onnx").read_bytes()
    _blob(tmp_path, hashlib.sha256(content).hexdigest()).unlink()
    told = refused("pull", target, "-o", tmp_path / "out", "--key", stranger, "--http-unsafe")
    assert "key" in told
    assert "not have this content" not in told


Alter = Callable[[dict[str, object]], None]


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (
            lambda found: found.update(artifactType="text/plain"),
            "is not a bundle, but 'text/plain'",
        ),
        (lambda found: found["layers"].pop(), "the artifact lacks"),
        (lambda found: found["layers"].pop(0), "the artifact lacks 'manifest.json'"),
        (lambda found: found["layers"].append(found["layers"][-1]), "twice in the artifact"),
        (
            lambda found: found["layers"][-1]["annotations"].update(
                {"org.opencontainers.image.title": "../../etc/passwd"}
            ),
            "the artifact adds '../../etc/passwd'",
        ),
        (lambda found: found["layers"][0].update(size=10**12), "at most"),
        (lambda found: found["layers"][-1].update(size=10**15), "the artifact has another"),
        (lambda found: found.update(layers="none"), "is not an artifact"),
    ],
)
def test_an_artifact_that_is_no_bundle_is_refused(
    alter: Alter, said: str, tmp_path: Path, bundle: ExampleBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgepack.bundle.manifest import decode_manifest
    from edgepack.registry import bundles

    manifest = decode_manifest((bundle.folder / "manifest.json").read_bytes())
    files = bundles.bundle_files(bundle.folder, manifest)
    found = json.loads(make_artifact(manifest, bundle.ref.digest, files))
    alter(found)
    artifact = json.dumps(found).encode()

    class Altered(Registry):
        """A registry with any manifest; a real registry stores no such manifest."""

        def read_manifest(self, name: str) -> bytes:
            return artifact

        def read_blob(self, digest: str, size_bytes: int, write: Callable[[bytes], object]) -> None:
            by_digest = {f"sha256:{sha}": path for path, (sha, _) in files.items()}
            write((bundle.folder / by_digest[digest]).read_bytes())

    monkeypatch.setattr(bundles, "Registry", Altered)
    told = refused("pull", "oci://registry.example/tiny:1", "-o", tmp_path / "out")
    assert said in told
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_and_what_is_no_name_are_told_apart(
    tmp_path: Path, open_registry: Server, bundle: ExampleBundle
) -> None:
    where = f"oci://127.0.0.1:{open_registry.port}"
    out = ("-o", tmp_path / "out", "--http-unsafe")
    assert "not have this content (HTTP status 404: manifest unknown)" in refused(
        "pull", f"{where}/tiny:none", *out
    )
    assert "names nothing in a registry" in refused("pull", "oci://host/UPPER:1", *out)
    assert "is not a place of a bundle" in refused("pull", "ftp://host/x", *out)
    assert "Connection refused" in refused("pull", "oci://127.0.0.1:9/tiny:1", *out)
    (tmp_path / "out").mkdir()
    assert "exists already" in refused("pull", f"{where}/tiny:none", *out)


def test_an_archive_comes_from_a_web_server(
    tmp_path: Path, bundle: ExampleBundle, release_keys: Keys
) -> None:
    root = tmp_path / "web"
    root.mkdir()
    pack(bundle.folder, root / "one.edgepack")
    (root / "none.edgepack").write_bytes(b"<html>")
    with Nginx(tmp_path / "nginx", root) as web:
        url = f"http://127.0.0.1:{web.port}"
        words = ("-o", tmp_path / "out", "--key", release_keys[1])
        assert "HTTP status 404" in refused("pull", f"{url}/two.edgepack", *words)
        assert "not a bundle" in refused("pull", f"{url}/none.edgepack", *words)
        pulled = done("pull", f"{url}/one.edgepack?token=secret", *words)
    assert pulled["digest"] == bundle.ref.digest
    assert "secret" not in str(pulled["reference"])
    assert same_files(tmp_path / "out", bundle.folder)
