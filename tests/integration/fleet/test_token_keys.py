"""A fleet with keys in tokens: signatures by SoftHSM, accepted by stock python-tuf and agents."""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess, run

import pkcs11
import pytest
from tuf.api.metadata import Metadata, Root

from edgepack.agent.broker.signing import make_signer
from edgepack.agent.config import read_config
from edgepack.bundle.pkcs11_keys import generate_token_key
from edgepack.bundle.pkcs11_uri import MODULE_VARIABLE, PIN_VARIABLE, parse_uri
from edgepack.bundle.signing_keys import load_signing_key
from edgepack.fleet.repository.director import Director
from edgepack.fleet.repository.repository import ImageRepository
from edgepack.trust.orders import verify_orders
from edgepack.wire.messages import encode
from edgepack.wire.orders import Desired
from edgepack.wire.reports import Reported
from edgepack.wire.signed import is_signed_by, read_batch
from tests.integration.fleet.conftest import MakeBundle, Serve, edgepack
from tests.integration.fleet.test_publishing import stock_client
from tests.simulators.tokens import CONFIG_VARIABLE, MODULE, PIN, make_token, start_tokens

TOKEN = "pkcs11:token=fleet;object="


@pytest.fixture(autouse=True)
def _token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    (tmp_path / "softhsm").mkdir()
    start_tokens(tmp_path / "softhsm")
    make_token("fleet")
    monkeypatch.setenv(MODULE_VARIABLE, str(MODULE))
    monkeypatch.setenv(PIN_VARIABLE, PIN)
    yield
    pkcs11.unload(str(MODULE))


def uri(label: str) -> str:
    """Make a new key in the token."""
    generate_token_key(parse_uri(f"{TOKEN}{label}"), "P-256")
    return f"{TOKEN}{label}"


def command(*words: str, pin: str = PIN) -> "CompletedProcess[str]":
    return run(
        (sys.executable, "-W", "ignore", "-m", "edgepack.cli", *words),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {PIN_VARIABLE: pin},
    )


def init(data: Path) -> None:
    keys = [("--root-key", uri("root-1")), ("--root-key", uri("root-2"))]
    keys += [(f"--{role}-key", uri(role)) for role in ("targets", "publisher", "director")]
    words = [word for pair in keys for word in pair]
    done = command("fleet", "init", "--root-threshold", "2", *words, "--data", str(data))
    assert done.returncode == 0, done.stderr
    assert "2 must sign, 2 of 2 within reach" in done.stdout


def test_all_roles_sign_inside_tokens_and_a_stock_client_believes_them(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    init(tmp_path / "fleet")
    offline = tmp_path / "fleet/tuf/offline"
    for path in offline.glob("*.key"):
        assert path.read_text().startswith(TOKEN)
        assert path.stat().st_mode & 0o077 == 0
    fleet = serve()
    done = edgepack(fleet, "publish", str(make_bundle()))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("is released\n")
    release = fleet.client.releases()[0].bundle
    assert stock_client(fleet, tmp_path / "first").get_targetinfo(f"digits/{release.digest}")

    rotated = command(
        "fleet",
        "keys",
        "rotate",
        "root",
        "--key",
        uri("root-3"),
        "--key",
        uri("root-4"),
        "--data",
        str(fleet.data),
    )
    assert rotated.returncode == 0, rotated.stderr
    assert "root version 2" in rotated.stdout
    updater = stock_client(fleet, tmp_path / "second")
    assert updater.get_targetinfo(f"digits/{release.digest}")
    root = Metadata[Root].from_bytes((tmp_path / "second/root.json").read_bytes())
    assert (root.signed.version, len(root.signatures)) == (2, 4)


def test_orders_to_devices_are_signed_inside_a_token(tmp_path: Path) -> None:
    init(tmp_path / "fleet")
    repository = ImageRepository(tmp_path / "fleet/tuf")
    sign, said = Director(repository, "t").sign, encode(Desired(sequence=1, models={}))
    with ThreadPoolExecutor(8) as threads:  # As the controller and the API do at once.
        signed = list(threads.map(lambda number: sign(f"cam-{number}", said), range(24)))
    targets = repository.state.targets.signed
    for number, payload in enumerate(signed):
        found = verify_orders(payload, targets, tenant="t", device=f"cam-{number}")
        assert found.desired.models == {}
    director = repository.state.targets.signed.get_delegated_role("director").keyids
    assert director[0] not in repository.keys.files()
    assert director[0] in repository.keys.paths()


def test_a_device_signs_its_reports_inside_a_token(tmp_path: Path) -> None:
    key = uri("device")
    settings = tmp_path / "agent.toml"
    settings.write_text(
        'device = "cam-1"\nstate_dir = "state"\n'
        f'[identity]\nkey_file = "{key}"\n[trust]\nkeys = []\n'
    )
    signer = make_signer(read_config(settings), "b")
    payload = signer.sign("reported", (Reported(online=True, at=1.0, boot="b"),))
    public = load_signing_key(key).public_key()
    assert is_signed_by(read_batch(payload), public)
    assert not (tmp_path / "state").exists(), "no key is made"


def test_a_publisher_signs_with_a_key_in_a_token(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet, key = serve(), uri("vision")
    added = command(
        "fleet",
        "keys",
        "publisher",
        "vision",
        "--models",
        "digits",
        "--key",
        key,
        "--data",
        str(fleet.data),
    )
    assert added.returncode == 0, added.stderr
    bundle = str(make_bundle())
    assert "is held, and not released" in edgepack(fleet, "publish", bundle).stdout
    signed = edgepack(fleet, "publish", bundle, "--key", key)
    assert signed.stdout == "'releases-vision', version 1 holds now\n", signed.stderr
    release = fleet.client.releases()[0].bundle
    assert stock_client(fleet, tmp_path / "client").get_targetinfo(f"digits/{release.digest}")
    withdrawn = edgepack(fleet, "withdraw", "digits@1.0.0", "--key", key)
    assert withdrawn.stdout == "'releases-vision', version 2 holds now\n", withdrawn.stderr


def test_a_fleet_serves_on_where_the_token_of_a_publisher_does_not_open(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = uri("publisher")
    made = command("fleet", "init", "--publisher-key", key, "--data", str(tmp_path / "fleet"))
    assert made.returncode == 0, made.stderr
    monkeypatch.delenv(PIN_VARIABLE)
    fleet = serve()
    done = edgepack(fleet, "publish", str(make_bundle()))
    assert "is held, and not released: its publisher must sign it" in done.stdout
    monkeypatch.setenv(PIN_VARIABLE, PIN)
    signed = edgepack(fleet, "publish", str(make_bundle()), "--key", key)
    assert signed.stdout == "'releases', version 2 holds now\n", signed.stderr


def test_what_names_no_key_in_a_token_is_refused(tmp_path: Path) -> None:
    data = str(tmp_path / "fleet")
    for words, problem in (
        (("--root-key", "root.key"), "'root.key' names no key in a token"),
        (("--root-key", f"{TOKEN}nothing"), "the token has no private key of that name"),
        (("--root-key", uri("twice"), "--root-key", f"{TOKEN}twice"), "one key was named twice"),
    ):
        done = command("fleet", "init", *words, "--data", data)
        assert done.returncode == 1
        assert problem in done.stderr
        assert not (tmp_path / "fleet/tuf/metadata").exists()
