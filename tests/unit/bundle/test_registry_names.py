"""Names in registries, and credentials there."""

import base64
import json
from pathlib import Path

import pytest

from edgepack.errors import TransferError
from edgepack.registry.credentials import HOST, PASSWORD, USER, find_credentials
from edgepack.registry.reference import read_reference

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("oci://host/a", ("host", "a", "latest")),
        ("oci://host:5000/a/b-c/d_e:1.2.0", ("host:5000", "a/b-c/d_e", "1.2.0")),
        (f"oci://[::1]:5000/a@{DIGEST}", ("[::1]:5000", "a", DIGEST)),
        (f"oci://host/a:tag@{DIGEST}", ("host", "a", DIGEST)),
    ],
)
def test_a_reference_is_read_as_registries_do(text: str, found: tuple[str, str, str]) -> None:
    reference = read_reference(text)
    assert (reference.host, reference.repository, reference.name) == found
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host/a",
        "oci://",
        "oci://host",
        "oci://host/",
        "oci://host/A",
        "oci://host/a/../b",
        "oci://user:secret@host/a",
        "oci://host/a:",
        "oci://host/a@sha256:12",
        "oci://host/a?x=1",
        "oci://host/a\n",
        "oci://host/" + "a" * 600,
        "oci://host/" + "a-" * 200 + "!",
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(TransferError, match="names nothing in a registry"):
        read_reference(text)


def write(folder: Path, settings: object) -> dict[str, str]:
    (folder / "config.json").write_text(json.dumps(settings))
    return {"DOCKER_CONFIG": str(folder)}


def test_the_environment_comes_before_docker(tmp_path: Path) -> None:
    auth = base64.b64encode(b"docker:one").decode()
    environment = write(tmp_path, {"auths": {"host:5000": {"auth": auth}}})
    assert find_credentials("host:5000", environment) == "docker:one"
    assert find_credentials("host", environment) == ""
    own = {**environment, HOST: "Host:5000", USER: "me", PASSWORD: "two"}
    assert find_credentials("host:5000", own) == "me:two"
    assert find_credentials("host", {"HOME": str(tmp_path / "nobody")}) == ""


def test_credentials_of_the_environment_belong_to_the_host_that_it_names(tmp_path: Path) -> None:
    auth = base64.b64encode(b"docker:one").decode()
    environment = write(tmp_path, {"auths": {"other": {"auth": auth}}}) | {
        USER: "me",
        PASSWORD: "two",
    }
    with pytest.raises(TransferError, match=HOST) as caught:
        find_credentials("evil", environment)
    assert HOST in (caught.value.remedy or "")
    named = {**environment, HOST: "host"}
    assert find_credentials("host", named) == find_credentials("HOST:443", named) == "me:two"
    assert find_credentials("evil", named) == find_credentials("host:5000", named) == ""
    assert find_credentials("other", named) == "docker:one"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auths": {"host": {"auth": "???"}}}, "is not the base64"),
        ({"auths": {"host": {"auth": "pässword"}}}, "is not the base64"),
        ({"auths": {"host": {"auth": "//8="}}}, "is not the base64"),
        ({"auths": {"host": {}}, "credsStore": "pass"}, "in its helper 'pass'"),
        ({"credHelpers": {"host": "ecr"}}, "in its helper 'ecr'"),
        ([], "docker's settings cannot be read"),
    ],
)
def test_what_cannot_be_read_of_docker_is_said(settings: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=said) as caught:
        find_credentials("host", write(tmp_path, settings))
    assert USER in (caught.value.remedy or "")


@pytest.mark.parametrize("named", ["https://registry.example", "registry.example/x", "a b", "a@b"])
def test_a_malformed_host_of_a_password_is_named(named: str) -> None:
    environment = {HOST: named, USER: "me", PASSWORD: "two", "HOME": "/nowhere"}
    with pytest.raises(TransferError, match="EDGEPACK_REGISTRY_HOST is not a host") as caught:
        find_credentials("registry.example", environment)
    assert named in caught.value.problem
    assert "EDGEPACK_REGISTRY_HOST=registry.example" in (caught.value.remedy or "")
