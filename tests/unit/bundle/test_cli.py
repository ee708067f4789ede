"""Commands around a bundle, from a user's view."""

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from edgepack.bundle import cli, keys_cli
from edgepack.bundle.archive import pack
from edgepack.bundle.keys import PASSPHRASE_VARIABLE, PrivateKey, load_private_key, public_pem
from edgepack.bundle.manifest import PlainRuntime, decode_manifest, encode_manifest
from edgepack.errors import EdgepackError


def call(command: click.Command, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def refused(result: Result) -> EdgepackError:
    assert isinstance(result.exception, EdgepackError), result.output
    return result.exception


@pytest.fixture(params=["folder", "archive"])
def either(request: pytest.FixtureRequest, bundle: Path, tmp_path: Path) -> Path:
    if request.param == "folder":
        return bundle
    pack(bundle, tmp_path / "digits.edgepack")
    return tmp_path / "digits.edgepack"


def test_inspect_shows_the_variants_and_says_that_it_verified_nothing(either: Path) -> None:
    result = call(cli.inspect, either)
    assert result.exit_code == 0
    assert "digits 1.2.0, release 3" in result.stdout
    assert "QNN" in result.stdout
    assert "model/cpu/weights.bin" in result.stdout
    assert "not verified: give --key" in result.stderr


def test_inspect_names_the_settings_of_plain_sessions_and_their_provider(
    bundle: Path, tmp_path: Path
) -> None:
    needs = {"session.graph_optimization_level": "disable_all"}
    path = bundle / "manifest.json"
    manifest = decode_manifest(path.read_bytes())
    changed = [
        replace(
            variant,
            facts=replace(
                variant.facts,
                plain_provider=PlainRuntime(
                    releases=("1.24.1",), right=True, session_options=needs
                ),
            ),
        )
        for variant in manifest.variants
    ]
    path.write_bytes(encode_manifest(replace(manifest, variants=tuple(changed))))
    shown = call(cli.inspect, bundle).stdout
    assert (
        "qnn-htp in ONNX Runtime by itself on QNNExecutionProvider (1.24.1) needs "
        "session.graph_optimization_level=disable_all" in shown
    )


def test_inspect_with_a_key_verifies_too(either: Path, key_prefix: Path) -> None:
    result = call(cli.inspect, either, "--key", f"{key_prefix}.pub")
    assert result.exit_code == 0
    assert "signed by key: " in result.stdout
    assert "not verified" not in result.output


def test_inspect_prints_json(either: Path, key_prefix: Path) -> None:
    unverified = json.loads(call(cli.inspect, either, "--json").stdout)
    assert (unverified["verified"], unverified["digest"]) == (False, None)
    verified = json.loads(call(cli.inspect, either, "--json", "--key", f"{key_prefix}.pub").stdout)
    assert verified["verified"] is True
    assert [v["name"] for v in verified["manifest"]["variants"]] == ["qnn-htp", "cpu"]


def test_verify_accepts_both_forms(either: Path, key_prefix: Path) -> None:
    result = call(cli.verify, either, "--key", f"{key_prefix}.pub")
    assert result.exit_code == 0
    assert result.stdout.startswith("digits 1.2.0, release 3: verified\n")
    as_json = json.loads(call(cli.verify, either, "--key", f"{key_prefix}.pub", "--json").stdout)
    assert as_json["files"].keys() >= {"manifest.json", "report.json"}


def test_verify_refuses_another_key(either: Path, other_key: PrivateKey, tmp_path: Path) -> None:
    (tmp_path / "other.pub").write_bytes(public_pem(other_key.public_key()))
    error = refused(call(cli.verify, either, "--key", tmp_path / "other.pub"))
    assert "not trusted" in error.problem


def test_verify_without_a_key_is_wrong_usage(either: Path) -> None:
    result = call(cli.verify, either)
    assert result.exit_code == 2
    assert "--key" in result.stderr


def test_unpack_makes_a_folder(bundle: Path, tmp_path: Path) -> None:
    pack(bundle, tmp_path / "digits.edgepack")
    result = call(cli.unpack, tmp_path / "digits.edgepack", "-o", tmp_path / "out")
    assert result.exit_code == 0
    assert "(not verified)" in result.stdout
    assert (tmp_path / "out/model/cpu/model.onnx").read_bytes() == b"float model"


def test_unpack_with_a_key_writes_nothing_unless_the_bundle_verifies(
    bundle: Path, tmp_path: Path, key_prefix: Path, other_key: PrivateKey
) -> None:
    pack(bundle, tmp_path / "digits.edgepack")
    (tmp_path / "other.pub").write_bytes(public_pem(other_key.public_key()))
    arguments = (tmp_path / "digits.edgepack", "-o", tmp_path / "out", "--key")
    assert "not trusted" in refused(call(cli.unpack, *arguments, tmp_path / "other.pub")).problem
    assert not (tmp_path / "out").exists()
    assert call(cli.unpack, *arguments, f"{key_prefix}.pub").exit_code == 0
    assert (tmp_path / "out/manifest.json").exists()


def test_unpacking_a_folder_is_refused(bundle: Path, tmp_path: Path) -> None:
    error = refused(call(cli.unpack, bundle, "-o", tmp_path / "out"))
    assert "is a folder already" in error.problem


@pytest.mark.parametrize("command", [cli.inspect, cli.verify])
def test_a_bundle_that_is_not_there_is_refused(
    command: click.Command, tmp_path: Path, key_prefix: Path
) -> None:
    error = refused(call(command, tmp_path / "none", "--key", f"{key_prefix}.pub"))
    assert error.problem == "there is no such bundle"


def test_inspect_of_nothing_is_refused(tmp_path: Path) -> None:
    assert refused(call(cli.inspect, tmp_path / "none")).problem == "there is no such bundle"


def test_a_bundle_may_be_named_by_a_link(either: Path, key_prefix: Path, tmp_path: Path) -> None:
    link = tmp_path / "latest"
    link.symlink_to(either)
    assert call(cli.inspect, link).exit_code == 0
    assert call(cli.verify, link, "--key", f"{key_prefix}.pub").exit_code == 0


def test_a_folder_that_is_no_bundle_is_refused_with_what_it_lacks(
    tmp_path: Path, key_prefix: Path
) -> None:
    for result in (
        call(cli.inspect, tmp_path),
        call(cli.verify, tmp_path, "--key", f"{key_prefix}.pub"),
    ):
        error = refused(result)
        assert error.problem == "the folder is not a bundle: it has no manifest.json"
        assert "that edgepack build wrote" in (error.remedy or "")


def test_keys_are_generated_and_shown(tmp_path: Path) -> None:
    made = call(keys_cli.keys, "generate", "-o", tmp_path / "release", "--curve", "P-384")
    assert made.exit_code == 0
    shown = json.loads(call(keys_cli.keys, "show", tmp_path / "release.pub", "--json").stdout)
    assert shown["curve"] == "P-384"
    assert shown["key_id"] in made.stdout
    assert "not encrypted" in made.stdout


def test_a_passphrase_in_the_environment_encrypts_a_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "secret")
    made = call(keys_cli.keys, "generate", "-o", tmp_path / "release")
    assert "(encrypted;" in made.stdout
    assert b"ENCRYPTED" in (tmp_path / "release.key").read_bytes()
    assert load_private_key(tmp_path / "release.key").key_size == 256


@pytest.mark.parametrize("arguments", [["generate"], ["show"], []])
def test_every_keys_help_has_an_example(arguments: list[str]) -> None:
    assert "Example:" in call(keys_cli.keys, *arguments, "--help").stdout


@pytest.mark.parametrize("command", [cli.inspect, cli.verify, cli.unpack])
def test_every_help_has_an_example(command: click.Command) -> None:
    assert "Example:" in call(command, "--help").stdout
