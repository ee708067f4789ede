"""Setup of a device from a single file, with its key made there if possible."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from msgspec.structs import replace

from edgepack.agent.config import read_config
from edgepack.agent.enrolment.asking import ask_for_certificate, check_url
from edgepack.agent.enrolment.identity import key_pem, load_key, make_key, make_signing_request
from edgepack.agent.enrolment.installation import NEXT_KEY_FILE, install_package
from edgepack.agent.enrolment.package import Package, read_package, write_package
from edgepack.bundle.keys import generate_key
from edgepack.errors import DeviceError
from edgepack.fleet.enrolment.authority import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


@pytest.fixture
def package(authority: Authority) -> Package:
    return Package(
        device="cam-1",
        tenant="t",
        broker="mqtts://localhost:8883",
        state_dir='/var/lib/"edgepack"\nx',
        trusted_keys=(generate_key().public_pem.decode(),),
        authority=authority.pem,
        enrol_at="http://127.0.0.1:1",
        token="once",
        expires_at=time.time() + 60,
    )


def test_a_package_is_for_its_owner_only_and_overwrites_nothing(
    tmp_path: Path, package: Package
) -> None:
    path = tmp_path / "cam-1.enrol"
    write_package(path, package)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_package(path) == package
    with pytest.raises(DeviceError, match="the file exists already"):
        write_package(path, package)


def test_what_is_no_package_is_told(tmp_path: Path, package: Package) -> None:
    path = tmp_path / "cam-1.enrol"
    with pytest.raises(DeviceError, match="there is no such file"):
        read_package(path)
    write_package(path, package)
    document = json.loads(path.read_text())
    for content, problem in (
        (b"", "not an enrolment package"),
        (b"\xff\x00", "not an enrolment package"),
        (json.dumps(document | {"device": "a/b"}).encode(), "must be 1 to 64"),
        (json.dumps(document | {"tenant": "#"}).encode(), "must be 1 to 64"),
        (json.dumps(document | {"trusted_keys": 1}).encode(), "not an enrolment package"),
        (json.dumps(document | {"v": 2}).encode(), "is of version 2"),
        (b"{" + b" " * 300_000, "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(DeviceError, match=problem):
            read_package(path)
    path.write_text(json.dumps(document | {"minor": 9, "colour": "red"}))
    assert read_package(path) == package
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DeviceError, match="cannot be read"):
        read_package(path)


def test_the_key_is_made_here_and_the_fleet_sees_a_request_alone(
    tmp_path: Path, authority: Authority, package: Package
) -> None:
    asked: list[str] = []

    def ask(_: Package, request: str) -> str:
        asked.append(request)
        return authority.sign_client(request, "cam-1")

    done = install_package(package, tmp_path / "etc", ask=ask)
    config = read_config(done.config)
    assert config.state_dir == package.state_dir
    assert config.broker is not None
    key_file = Path(config.broker.key_file)
    assert key_file.stat().st_mode & 0o777 == 0o600
    key = load_key(key_file.read_bytes(), "")
    assert "PRIVATE" not in asked[0]
    request = x509.load_pem_x509_csr(asked[0].encode())
    assert request.public_key() == key.public_key()
    certificate = x509.load_pem_x509_certificate(Path(config.broker.cert_file).read_bytes())
    assert certificate.public_key() == key.public_key()
    assert not (tmp_path / "etc" / NEXT_KEY_FILE).exists()


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_key(
    tmp_path: Path, authority: Authority, package: Package
) -> None:
    asked: list[str] = []

    def lose(_: Package, request: str) -> str:
        asked.append(request)
        raise DeviceError("no answer")

    for _ in range(2):
        with pytest.raises(DeviceError, match="no answer"):
            install_package(package, tmp_path / "etc", ask=lose)
    assert not (tmp_path / "etc/agent.toml").exists()
    keys = [x509.load_pem_x509_csr(request.encode()).public_key() for request in asked]
    install_package(package, tmp_path / "etc", ask=lambda _, it: authority.sign_client(it, "cam-1"))
    found = load_key((tmp_path / "etc/device.key").read_bytes(), "")
    assert keys == 2 * [found.public_key()]


def test_a_certificate_that_is_not_this_devices_is_not_installed(
    tmp_path: Path, authority: Authority, package: Package
) -> None:
    other = make_signing_request(make_key(), "cam-1").decode()
    foreign = Authority(tmp_path / "foreign")
    answers: dict[str, Callable[[Package, str], str]] = {
        "is of 'cam-2'": lambda _, it: authority.sign_client(it, "cam-2"),
        "is of another key": lambda *_: authority.sign_client(other, "cam-1"),
        "the fleet's authority did not issue": lambda _, it: foreign.sign_client(it, "cam-1"),
        "cannot be read": lambda *_: "",
    }
    folder = tmp_path / "etc"
    for problem, answer in answers.items():
        with pytest.raises(DeviceError, match=problem):
            install_package(package, folder, ask=answer)
        assert not (folder / "agent.toml").exists()
        assert not (folder / "device.crt").exists()


def test_a_device_that_is_enrolled_again_keeps_its_settings(
    tmp_path: Path, authority: Authority, package: Package
) -> None:
    def given() -> Package:
        key = make_key()
        request = make_signing_request(key, "cam-1").decode()
        certificate = authority.sign_client(request, "cam-1")
        return replace(package, token="", key=key_pem(key).decode(), certificate=certificate)

    config = install_package(given(), tmp_path / "etc").config
    changed = config.read_text() + "\n[limits]\nmax_restarts = 3\n"
    config.write_text(changed)
    again = given()
    install_package(again, tmp_path / "etc")
    assert config.read_text() == changed
    assert (tmp_path / "etc/device.key").read_text() == again.key
    # The fleet has got a root since: the settings must say so.
    rooted = replace(given(), root="{}", enrol_at="https://f/")
    done = install_package(rooted, tmp_path / "etc")
    assert read_config(done.config).trust.root == str(tmp_path / "etc/root.json")
    assert read_config(done.config).trust.metadata == "https://f/tuf/metadata"
    assert done.before is not None
    assert done.before.read_text() == changed
    assert install_package(rooted, tmp_path / "etc").before is None
    with pytest.raises(DeviceError, match="this folder is that of the device 'cam-1'"):
        install_package(replace(given(), device="cam-2"), tmp_path / "etc")
    (tmp_path / "file").write_text("")
    with pytest.raises(DeviceError, match="cannot write the device's folder"):
        install_package(given(), tmp_path / "file" / "etc")


def test_a_token_goes_nowhere_where_it_can_be_read(package: Package) -> None:
    for url, problem in (
        ("http://fleet.example:8600", "plain http can be read on its way"),
        ("ftp://fleet.example", "not a URL of a fleet"),
        ("https://user:secret@fleet.example", "not a URL of a fleet"),
        ("https://fleet.example:0", "not a URL of a fleet"),
        ("https://", "not a URL of a fleet"),
    ):
        with pytest.raises(DeviceError, match=problem):
            check_url(url)
    for url in ("https://fleet.example:8600", "http://127.0.0.1:8600", "http://[::1]", "https://f"):
        check_url(url)
    with pytest.raises(DeviceError, match="the token in the package is over"):
        ask_for_certificate(replace(package, expires_at=1.0), "")
    for changes in (
        {},
        {"token": "a\nb"},
        {"token": "\u20ac"},
        {"enrol_at": "https://" + "a" * 999},
    ):
        with pytest.raises(DeviceError, match="cannot be asked for a certificate"):
            ask_for_certificate(replace(package, **changes), "")
    with pytest.raises(DeviceError, match="the authority of the fleet's https cannot be used"):
        ask_for_certificate(replace(package, enrol_at="https://f", enrol_authority="nothing"), "")


SOURCES = ("https://files.example/{name}-{version}.edgepack", "oci://registry.example/models/m")


def without_a_token(package: Package, authority: Authority) -> Package:
    """Return the package of a broker without TLS: the device has a key and a certificate all the
    same.
    """
    key = make_key()
    certificate = authority.sign_client(make_signing_request(key, "cam-1").decode(), "cam-1")
    made = replace(package, key=key_pem(key).decode(), certificate=certificate)
    return replace(made, broker="mqtt://localhost", token="", enrol_at="")


def test_sources_of_the_package_stand_in_the_settings_in_their_order(
    tmp_path: Path, package: Package, authority: Authority
) -> None:
    path, folder = tmp_path / "cam-1.enrol", tmp_path / "etc"
    write_package(path, replace(without_a_token(package, authority), sources=SOURCES))
    config = install_package(read_package(path), folder).config
    assert tuple(source.url for source in read_config(config).transfer.sources) == SOURCES


def test_who_enrols_again_gets_sources_that_are_new_and_keeps_those_of_its_own(
    tmp_path: Path, package: Package, authority: Authority
) -> None:
    first = replace(without_a_token(package, authority), sources=SOURCES[:1])
    config = install_package(first, tmp_path / "etc").config
    config.write_text(
        config.read_text().replace(
            "[[transfer",
            '[[transfer.sources]]\nurl = "https://site.example/{digest}"\n\n[[transfer',
        )
    )
    again = install_package(first, tmp_path / "etc")
    assert again.before is None
    assert len(read_config(config).transfer.sources) == 2
    done = install_package(replace(first, sources=SOURCES), tmp_path / "etc")
    assert done.before is not None
    assert "site.example" in done.before.read_text()
    assert tuple(source.url for source in read_config(config).transfer.sources) == SOURCES


@pytest.mark.parametrize(
    "url",
    [
        "https://files.example/",
        "https://files.example/{nmae}",
        "ftp://files.example/{name}",
        "oci://UPPER/{name}",
        "{",
        '"\n[trust]\nkeys = []\n#{name}',
    ],
)
def test_a_source_that_could_never_be_used_sets_nothing_up(
    tmp_path: Path, package: Package, authority: Authority, url: str
) -> None:
    with pytest.raises(DeviceError, match="a source cannot be used"):
        install_package(
            replace(without_a_token(package, authority), sources=(url,)), tmp_path / "etc"
        )
    assert not (tmp_path / "etc").exists()
