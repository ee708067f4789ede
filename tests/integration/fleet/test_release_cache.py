"""Controllers with separate release folders, which fetch missing releases from the source."""

import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgepack.bundle.keys import load_public_key
from edgepack.bundle.trust import TrustPolicy
from edgepack.cli import cli
from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import RolloutSettings
from edgepack.fleet.releases.fetching import Wanted, check_source, fetch_release
from edgepack.fleet.releases.folder import ReleaseFolder
from edgepack.registry.bundles import pull
from tests.integration.fleet.conftest import (
    SIMULATED,
    FleetProcess,
    MakeBundle,
    Mosquitto,
    Serve,
    Simulate,
)
from tests.integration.fleet.controller_processes import ControllerProcesses, controllers
from tests.integration.fleet.postgresql import PostgreSQL
from tests.simulators import web_ways
from tests.simulators.any_answer import AnyAnswer, http_answer
from tests.simulators.certificates import issue, make_authority
from tests.simulators.waiting import wait_until
from tests.simulators.web_ways import Nginx, registry

WAVES = RolloutSettings(waves="4,8,100%", soak_s=0.5, deadline_s=400.0, gate_evidence="optional")


@pytest.fixture(autouse=True)
def _installed() -> None:
    web_ways.skip_if_missing()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a certificate of 127.0.0.1, and an authority that every process of the test trusts."""
    issue(tmp_path, "server", make_authority(tmp_path, "ca"), "127.0.0.1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return tmp_path / "server"


@pytest.fixture
def apart(
    tmp_path: Path, authority: Path, postgresql: PostgreSQL, mosquitto: Mosquitto, key_prefix: Path
) -> Iterator[ControllerProcesses]:
    trust = key_prefix.with_suffix(".pub")
    with controllers(tmp_path / "fleet", postgresql, mosquitto.url, trust) as processes:
        yield processes


def run(*words: object) -> str:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def publish(fleet: FleetProcess, place: str) -> ReleaseView:
    run("publish", place, "--data", fleet.data, "--url", fleet.url)
    return fleet.client.releases()[0]


def own(folder: Path) -> tuple[str, str]:
    return ("--cache", str(folder))


def said_of(fleet: FleetProcess) -> str:
    return " ".join(fleet.info().warnings)


def test_another_controller_fetches_from_a_registry_what_a_dead_one_had(
    tmp_path: Path,
    authority: Path,
    apart: ControllerProcesses,
    simulation: Simulate,
    make_bundle: MakeBundle,
) -> None:
    bundle = make_bundle(size_bytes=3_000_000)
    with registry(tmp_path, tls=str(authority)) as server:
        place = f"oci://127.0.0.1:{server.port}/models/digits:1.0.0"
        pushed = run("push", bundle, place, "--ca-file", tmp_path / "ca.pem")
        first = apart.start(*own(tmp_path / "one"), "--lease", "4")
        release = publish(apart.fleets[first], place)
        assert release.source in pushed
        assert "@sha256:" in release.source
        second = apart.start(*own(tmp_path / "two"), "--lease", "4")
        fleet = apart.fleets[second]
        simulation(fleet, count=12)
        assert apart.leader == first
        rollout = fleet.client.start_rollout(release, SIMULATED, WAVES).rollout
        wait_until(lambda: bool(fleet.rollout(rollout).counts.get("COMMITTED")), "a wave went on")
        apart.kill(first)
        shutil.rmtree(tmp_path / "one")
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 12}
    assert (tmp_path / "two/releases" / release.bundle.digest).is_dir()
    assert not list((tmp_path / "two/incoming").rglob("fetched-*")), "nothing is left behind"
    entry = fleet.client.audit(action="release.fetch")[0]
    assert entry.because == f"{second} has fetched digits 1.0.0 ({release.bundle.digest[:12]})"
    assert entry.numbers == {"source": release.source}


def test_altered_bytes_are_refused_and_named_while_other_releases_go_on(
    tmp_path: Path, apart: ControllerProcesses, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    root = tmp_path / "files"
    root.mkdir()
    for archive in (make_bundle(), make_bundle("2.0.0", 2)):
        shutil.copy(archive, root)
    with Nginx(tmp_path / "nginx", root) as server:
        first = apart.start(*own(tmp_path / "one"))
        url = f"http://127.0.0.1:{server.port}"
        good = publish(apart.fleets[first], f"{url}/digits-1.0.0.edgepack")
        bad = publish(apart.fleets[first], f"{url}/digits-2.0.0.edgepack")
        served = root / "digits-2.0.0.edgepack"
        content = served.read_bytes()
        middle = len(content) // 2
        served.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        apart.kill(first)
        second = apart.start(*own(tmp_path / "two"))
        fleet = apart.fleets[second]
        simulation(fleet, count=4)
        simulation(fleet, count=2, prefix="other", group="others")
        others = SIMULATED.__class__(kind="group", group="others")
        waiting = fleet.client.start_rollout(bad, others, WAVES).rollout
        rollout = fleet.client.start_rollout(good, SIMULATED, WAVES).rollout
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 4}
        wait_until(lambda: bool(fleet.info().warnings), "it is said")
        said = said_of(fleet)
        assert f"{second} cannot get the files of digits 2.0.0" in said
        assert bad.source in said
        shown = run("fleet", "info", "--data", fleet.data, "--url", fleet.url)
        assert "warning" in shown
        assert "cannot get the files of digits" in shown
        because = {entry.because for entry in fleet.client.audit(action="release.fetch")}
        assert because & {*fleet.info().warnings}
        assert not (tmp_path / "two/releases" / bad.bundle.digest).exists()
        assert fleet.rollout(waiting).counts.get("COMMITTED", 0) == 0
        served.write_bytes(content)
        assert fleet.wait_for(waiting, "FINISHED").counts == {"COMMITTED": 2}
    assert fleet.info().warnings == ()


def test_a_release_that_was_published_as_a_file_is_named_with_what_to_do(
    tmp_path: Path, apart: ControllerProcesses, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle()
    first = apart.start(*own(tmp_path / "one"))
    release = apart.fleets[first].client.publish(bundle)
    assert release.source == ""
    second = apart.start(*own(tmp_path / "two"))
    fleet = apart.fleets[second]
    simulation(fleet, count=2)
    apart.kill(first)
    rollout = fleet.client.start_rollout(release, SIMULATED, WAVES).rollout
    wait_until(lambda: bool(fleet.info().warnings), "it is said")
    assert "was published as a file, so its files lie at another controller" in said_of(fleet)
    assert "edgepack publish oci://" in said_of(fleet)
    # What it says helps: here the file is given once more.
    fleet.client.publish(bundle)
    assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 2}


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    (tmp_path / "files").mkdir()
    with Nginx(tmp_path / "nginx", tmp_path / "files") as server:
        yield tmp_path / "files", f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("another release", "another bundle lies where digits 1.0.0"),
        ("longer", "it sends more than"),
        ("cut", "archive"),
        ("nobody's", "which is not trusted"),
        ("absent", "HTTP status 404"),
        ("a page", "archive"),
    ],
)
def test_nothing_else_than_what_was_recorded_gets_into_the_folder(
    tmp_path: Path,
    web: tuple[Path, str],
    make_bundle: MakeBundle,
    key_prefix: Path,
    what: str,
    said: str,
) -> None:
    root, url = web
    bundle, served = make_bundle(), root / "digits.edgepack"
    digest = pull_digest(bundle, served, url, tmp_path)
    content = bundle.read_bytes()
    trust = TrustPolicy(keys=(load_public_key(key_prefix.with_suffix(".pub")),))
    match what:
        case "another release":
            shutil.copy(make_bundle("2.0.0", 2), served)
        case "longer":
            served.write_bytes(content + os.urandom(30_000_000))
        case "cut":
            served.write_bytes(content[: len(content) // 2])
        case "nobody's":
            trust = TrustPolicy(keys=())
        case "absent":
            served.unlink()
        case "a page":
            served.write_text("<html>log in first</html>")
    folder = ReleaseFolder(tmp_path / "releases", tmp_path / "incoming")
    wanted = Wanted(
        digest=digest,
        name="digits",
        title="digits 1.0.0",
        source=f"{url}/digits.edgepack",
        most_bytes=len(content),
    )
    with pytest.raises(EdgepackError) as refusal:
        fetch_release(wanted, folder, trust, lambda: False)
    assert said in str(refusal.value)
    assert not folder.has(digest)
    assert not list(folder.root.iterdir())
    assert not list(folder.incoming.iterdir())


def pull_digest(bundle: Path, served: Path, url: str, folder: Path) -> str:
    shutil.copy(bundle, served)
    return pull(f"{url}/{served.name}", folder / "pulled").digest


@pytest.mark.parametrize(
    "source",
    [
        "https://user:secret@files.example/m.edgepack",
        "https://files.example/m.edgepack?signature=secret",
        "oci://registry.example/m:1.0.0",
        "file:///etc/passwd",
        "https://[",
        "/srv/m.edgepack",
    ],
)
def test_a_source_that_is_none_or_may_hold_a_secret_is_not_kept(source: str) -> None:
    with pytest.raises(FleetError) as refusal:
        check_source(source)
    assert "not a place that the fleet can keep" in refusal.value.problem
    assert "secret" not in str(refusal.value)


def test_sources_that_hang_do_not_stop_fetching_from_others(
    tmp_path: Path, serve: Serve, simulation: Simulate, make_bundle: MakeBundle
) -> None:
    let_go = threading.Event()
    bundles = [make_bundle(f"{number}.0.0", number) for number in range(1, 5)]
    answers = [http_answer(path.read_bytes()) for path in bundles]
    sources = [AnyAnswer(partial(lambda answer, _: answer, answer)) for answer in answers]
    fleet = serve(*own(tmp_path / "cache"))
    try:
        releases = []
        for number, source in enumerate(sources):
            url = f"{source.url}/digits-{number}.edgepack"
            run("publish", url, "--data", fleet.data, "--url", fleet.url)
            releases += [one for one in fleet.client.releases() if one.source == url]
        simulation(fleet, count=2)
        fleet.stop()
        shutil.rmtree(tmp_path / "cache/releases")

        def hang(_: bytes) -> bytes:
            let_go.wait()
            return b""

        for source in sources[:3]:
            source.requests.clear()
            source.answer = hang
        fleet.start()
        for number, release in enumerate(releases[:3]):
            group = SIMULATED.__class__(kind="group", group=f"others-{number}")
            simulation(fleet, count=1, prefix=f"other{number}", group=f"others-{number}")
            fleet.client.start_rollout(release, group, WAVES)
        wait_until(lambda: all(source.requests for source in sources[:3]), "all were asked")
        rollout = fleet.client.start_rollout(releases[3], SIMULATED, WAVES).rollout
        assert fleet.wait_for(rollout, "FINISHED").counts == {"COMMITTED": 2}
        assert not let_go.is_set()
    finally:
        let_go.set()
        for source in sources:
            source.close()
