"""Releases on a running fleet: view of a stock TUF client, and signatures of publishers."""

import urllib.request
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner
from tuf.ngclient import Updater

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.cli import cli
from edgepack.fleet.client.fleet_client import FleetClient
from edgepack.fleet.commands.keys import keys
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve, edgepack
from tests.simulators import web_ways
from tests.simulators.certificates import issue, make_authority

ROOT = "tuf/metadata/1.root.json"
ROLES = ("targets", "releases", "snapshot", "timestamp")


def stock_client(fleet: FleetProcess, folder: Path) -> Updater:
    with urllib.request.urlopen(f"{fleet.url}/{ROOT}") as answer:
        root = answer.read()
    (folder / "targets").mkdir(parents=True)
    return Updater(
        metadata_dir=str(folder),
        metadata_base_url=f"{fleet.url}/tuf/metadata/",
        target_dir=str(folder / "targets"),
        target_base_url=f"{fleet.url}/tuf/targets/",
        bootstrap=root,
    )


def test_a_stock_client_finds_what_is_released_and_not_what_is_withdrawn(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    client = FleetClient(fleet.url, data=fleet.data)
    done = edgepack(fleet, "publish", str(make_bundle()))
    assert done.returncode == 0, done.stderr
    release = client.releases()[0].bundle
    path = f"digits/{release.digest}"
    assert done.stdout == f"digits 1.0.0 ({release.digest[:12]}) is released\n"

    updater = stock_client(fleet, tmp_path / "first")
    found = updater.get_targetinfo(path)
    assert found is not None
    assert found.custom["release"] == 1
    content = Path(updater.download_target(found)).read_bytes()
    assert sha256(content).hexdigest() == release.digest

    stick = tmp_path / "stick"
    done = edgepack(fleet, "export", str(make_bundle()), "--with-metadata", "-o", str(stick))
    assert done.stdout == f"edgepack-agent install {stick / 'digits-1.0.0.edgepack'}\n"
    names = {path.name for path in (stick / "metadata").iterdir()}
    assert names == {"1.root.json", *(f"{role}.json" for role in ROLES)}

    done = edgepack(fleet, "withdraw", "digits@1.0.0")
    assert done.returncode == 0, done.stderr
    done = edgepack(fleet, "export", str(make_bundle()), "--with-metadata", "-o", str(stick))
    assert "the fleet has not released this bundle" in done.stderr
    assert stock_client(fleet, tmp_path / "second").get_targetinfo(path) is None
    done = edgepack(fleet, "publish", str(make_bundle()))
    assert done.returncode == 0, done.stderr


def test_a_publisher_signs_where_the_key_is(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path
) -> None:
    fleet = serve()
    client = FleetClient(fleet.url, data=fleet.data)
    private, public = write_key_pair(generate_key(), tmp_path / "team")
    arguments = ["--models", "digits", "--key", str(public), "--data", str(fleet.data)]
    changed = CliRunner().invoke(keys, ["publisher", "vision", *arguments])
    assert changed.exit_code == 0, changed.output
    client.enroll("cam-1", group="cameras", folder=tmp_path / "cam-1")
    bundle = make_bundle()
    done_first = edgepack(fleet, "publish", str(bundle))
    assert "is held, and not released" in done_first.stdout
    refused = edgepack(fleet, "rollout", "start", str(bundle), "--all", "--yes")
    assert "is not released: its publisher has not signed it yet" in refused.stderr
    signed = edgepack(fleet, "publish", str(bundle), "--key", str(private))
    assert signed.stdout == "'releases-vision', version 1 holds now\n"
    assert client.releases()[0].is_listed


def test_what_was_withdrawn_stays_withdrawn_when_the_fleet_starts_again(
    serve: Serve, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    assert edgepack(fleet, "publish", str(make_bundle())).returncode == 0
    assert edgepack(fleet, "withdraw", "digits@1.0.0").returncode == 0
    fleet.stop()
    fleet.start()
    assert [it.is_listed for it in fleet.client.releases()] == [False]
    assert edgepack(fleet, "publish", str(make_bundle())).returncode == 0
    assert [it.is_listed for it in fleet.client.releases()] == [True]


def test_old_releases_that_nothing_needs_are_withdrawn_together(
    serve: Serve, make_bundle: MakeBundle
) -> None:
    fleet = serve()
    for number in range(1, 4):
        bundle = str(make_bundle(version=f"{number}.0.0", release=number))
        assert edgepack(fleet, "publish", bundle).returncode == 0
    prune = ("fleet", "releases", "prune", "--keep", "1")
    done = edgepack(fleet, *prune)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 releases withdrawn\n"
    assert "2.0.0" in done.stderr
    listed = {it.bundle.version: it.is_listed for it in fleet.client.releases()}
    assert listed == {"3.0.0": True, "2.0.0": False, "1.0.0": False}
    assert edgepack(fleet, *prune).stdout == "every release is needed\n"
    assert edgepack(fleet, "publish", str(make_bundle("2.0.0", 2))).returncode == 0


def test_a_bundle_that_rests_in_a_registry_is_released_and_rolled_out_from_there(
    serve: Serve, make_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    web_ways.skip_if_missing()
    fleet = serve()
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with web_ways.registry(tmp_path, tls=str(tmp_path / "server")) as server:
        place = f"oci://127.0.0.1:{server.port}/models/digits"
        pushed = CliRunner().invoke(cli, ["push", str(make_bundle()), f"{place}:1.0.0"])
        assert pushed.exit_code == 0, pushed.exception
        done = edgepack(fleet, "publish", f"{place}:1.0.0")
        assert done.returncode == 0, done.stderr
        assert "is released" in done.stdout
        done = edgepack(fleet, "publish", f"{place}:2.0.0")
        assert done.returncode == 1
        assert "the registry does not have this content" in done.stderr
        enrolled = edgepack(
            fleet, "fleet", "enroll", "cam-1", "--group", "g", "-o", str(tmp_path / "cam-1")
        )
        assert enrolled.returncode == 0, enrolled.stderr
        done = edgepack(fleet, "rollout", "start", f"{place}:1.0.0", "--all", "--dry-run", "--json")
        assert '"digits"' in done.stdout, done.stderr
    assert not list(tmp_path.glob("edgepack-*")), "nothing is left behind"
