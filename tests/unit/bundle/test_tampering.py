"""Any change of a signed bundle is rejected, with a message that names the change."""

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgepack.bundle.envelope import MAX_SIGNATURE_BYTES
from edgepack.bundle.keys import PrivateKey, PublicKey, key_id, signature_algorithm
from edgepack.bundle.manifest import decode_manifest
from edgepack.bundle.signature import sign_folder, verify_envelope
from edgepack.bundle.verify import verify_folder
from edgepack.errors import BundleError, SignatureError

FILES = (
    "golden/golden.npz",
    "hooks/before-activate",
    "manifest.json",
    "model/cpu/model.onnx",
    "model/cpu/weights.bin",
    "model/qnn-htp/model.onnx",
    "report.json",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_one_changed_byte_of_any_file_is_refused_by_name(
    bundle: Path, public_key: PublicKey, name: str, where: str
) -> None:
    content = bytearray((bundle / name).read_bytes())
    content[{"first": 0, "middle": len(content) // 2, "last": -1}[where]] ^= 1
    (bundle / name).write_bytes(content)
    with pytest.raises(SignatureError, match=f"'{name}' is not what was signed"):
        verify_folder(bundle, [public_key])


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused_by_name(bundle: Path, public_key: PublicKey, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(BundleError, match=name):
        verify_folder(bundle, [public_key])


def test_a_longer_file_is_refused_with_both_sizes(bundle: Path, public_key: PublicKey) -> None:
    with (bundle / "report.json").open("ab") as file:
        file.write(b"\n")
    with pytest.raises(SignatureError, match=r"'report.json' has 3 bytes, 2 were signed"):
        verify_folder(bundle, [public_key])


@pytest.mark.parametrize("name", ["extra.txt", "model/cpu/.hidden", "model/new/model.onnx"])
def test_an_extra_file_is_refused_by_name(bundle: Path, public_key: PublicKey, name: str) -> None:
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_bytes(b"")
    with pytest.raises(SignatureError, match=f"'{name}' is not in the signed list"):
        verify_folder(bundle, [public_key])


@pytest.mark.parametrize("name", [".git/config", ".gitattributes", ".github/x", ".gitignore"])
def test_a_git_file_is_refused_because_the_signature_would_ignore_it(
    bundle: Path, public_key: PublicKey, private_key: PrivateKey, name: str
) -> None:
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_bytes(b"")
    with pytest.raises(BundleError, match="leaves unsigned"):
        verify_folder(bundle, [public_key])
    with pytest.raises(BundleError, match="leaves unsigned"):
        sign_folder(bundle, private_key)


def test_a_symbolic_link_is_refused_even_to_the_same_bytes(
    bundle: Path, public_key: PublicKey, tmp_path: Path
) -> None:
    (bundle / "report.json").rename(tmp_path / "report.json")
    (bundle / "report.json").symlink_to(tmp_path / "report.json")
    with pytest.raises(BundleError, match=r"'report.json' is a symbolic link"):
        verify_folder(bundle, [public_key])


def test_a_pipe_is_refused_and_never_read(bundle: Path, public_key: PublicKey) -> None:
    (bundle / "report.json").unlink()
    os.mkfifo(bundle / "report.json")
    with pytest.raises(BundleError, match=r"'report.json' is not a regular file"):
        verify_folder(bundle, [public_key])


def test_an_unsigned_bundle_is_refused_with_a_remedy(bundle: Path, public_key: PublicKey) -> None:
    (bundle / "model.sig").unlink()
    with pytest.raises(SignatureError, match=r"no 'model.sig'") as caught:
        verify_folder(bundle, [public_key])
    assert "--key" in (caught.value.remedy or "")


def test_a_key_that_did_not_sign_is_refused_and_both_are_named(
    bundle: Path, public_key: PublicKey, other_key: PrivateKey
) -> None:
    with pytest.raises(SignatureError, match="not trusted") as caught:
        verify_folder(bundle, [other_key.public_key()])
    assert key_id(public_key)[:16] in str(caught.value)
    assert key_id(other_key.public_key())[:16] in str(caught.value)


def test_no_trusted_key_at_all_refuses(bundle: Path) -> None:
    with pytest.raises(SignatureError, match=r"trusted: none"):
        verify_folder(bundle, [])


def test_any_one_of_the_trusted_keys_suffices(
    bundle: Path, public_key: PublicKey, other_key: PrivateKey
) -> None:
    assert verify_folder(bundle, [other_key.public_key(), public_key]).manifest.facts.release == 3


@pytest.mark.parametrize("kept", ["cpu", "qnn-htp"])
def test_a_device_may_lack_a_whole_variant_and_the_report(
    bundle: Path, public_key: PublicKey, kept: str
) -> None:
    for name in {"cpu", "qnn-htp"} - {kept}:
        for path in (bundle / "model" / name).iterdir():
            path.unlink()
    (bundle / "report.json").unlink()
    with pytest.raises(SignatureError, match="signed but missing"):
        verify_folder(bundle, [public_key])
    verify_folder(bundle, [public_key], complete=False)


@pytest.mark.parametrize(
    "name", ["model/cpu/weights.bin", "golden/golden.npz", "hooks/before-activate"]
)
def test_a_device_may_not_lack_half_a_variant_nor_golden_samples_nor_hooks(
    bundle: Path, public_key: PublicKey, name: str
) -> None:
    (bundle / name).unlink()
    with pytest.raises(SignatureError, match=f"'{name}' is signed but missing"):
        verify_folder(bundle, [public_key], complete=False)


# What follows is signed by a trusted key, yet says what no bundle may say.


def resign(bundle: Path, key: PrivateKey, change: Callable[[Any], object]) -> bytes:
    """Return the bundle's signature with a changed statement, signed again by the same key."""
    document = json.loads((bundle / "model.sig").read_bytes())
    statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    kind = document["dsseEnvelope"]["payloadType"]
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    signature = key.sign(signed, signature_algorithm(key.public_key()))
    document["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    document["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    return json.dumps(document).encode()


def first_resource(statement: Any) -> Any:
    return statement["predicate"]["resources"][0]


STATEMENTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "another ignored path": (
        lambda s: s["predicate"]["serialization"]["ignore_paths"].append("model/cpu"),
        "leaves out 'model/cpu'",
    ),
    "symlinks allowed": (
        lambda s: s["predicate"]["serialization"].update(allow_symlinks=True),
        "follows symbolic links",
    ),
    "another method": (
        lambda s: s["predicate"]["serialization"].update(method="shards"),
        "does not fit the format",
    ),
    "another hash": (
        lambda s: s["predicate"]["serialization"].update(hash_type="blake2"),
        "does not fit the format",
    ),
    "two subjects": (lambda s: s["subject"].append(s["subject"][0]), "length 1"),
    "no subject": (lambda s: s["subject"].clear(), "length 1"),
    "a wrong root digest": (
        lambda s: s["subject"][0]["digest"].update(sha256="00" * 32),
        "root digest",
    ),
    "a resource twice": (
        lambda s: s["predicate"]["resources"].insert(0, first_resource(s)),
        "must not be listed twice",
    ),
    "resources out of order": (
        lambda s: s["predicate"]["resources"].reverse(),
        "not in order",
    ),
    "the signature among the resources": (
        lambda s: first_resource(s).update(name="model.sig"),
        "'model.sig' must not be listed",
    ),
    "a name that leaves the folder": (
        lambda s: first_resource(s).update(name="../evil"),
        r"leads out of its folder",
    ),
    "an absolute name": (lambda s: first_resource(s).update(name="/etc/passwd"), "is absolute"),
    "a name with a backslash": (lambda s: first_resource(s).update(name="a\\b"), "backslash"),
    "a name with NUL": (lambda s: first_resource(s).update(name="a\0b"), "control character"),
    "a name in a second spelling": (lambda s: first_resource(s).update(name="./a"), "spelling"),
    "a git file": (lambda s: first_resource(s).update(name=".git/x"), "leaves unsigned"),
    "a short digest": (lambda s: first_resource(s).update(digest="abcd"), "does not fit"),
    "another algorithm": (lambda s: first_resource(s).update(algorithm="md5"), "does not fit"),
    "an extra key": (lambda s: s["predicate"].update(note="x"), "unknown field `note`"),
    "another predicate": (lambda s: s.update(predicateType="x"), "predicateType|of the type"),
    "another statement": (lambda s: s.update(_type="x"), "of the type"),
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_statement_is_refused_with(
    case: str, bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    change, message = STATEMENTS[case]
    with pytest.raises(SignatureError, match=message) as caught:
        verify_envelope(resign(bundle, private_key, change), [public_key])
    assert (caught.value.found_in or "").startswith("model.sig")


def test_an_unchanged_statement_that_was_signed_again_is_accepted(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    assert verify_envelope(resign(bundle, private_key, len), [public_key]).files


ENVELOPES: dict[str, tuple[Callable[[Any], object], str]] = {
    "another media type": (lambda d: d.update(mediaType="x"), "of the type"),
    "another payload type": (lambda d: d["dsseEnvelope"].update(payloadType="x"), "of the type"),
    "no signature": (lambda d: d["dsseEnvelope"]["signatures"].clear(), "length 1"),
    "two signatures": (
        lambda d: d["dsseEnvelope"]["signatures"].append({"sig": ""}),
        "length 1",
    ),
    "a payload that is not base64": (lambda d: d["dsseEnvelope"].update(payload="*"), "base64"),
    "another payload": (lambda d: d["dsseEnvelope"].update(payload="e30="), "changed after"),
    "an empty signature": (
        lambda d: d["dsseEnvelope"]["signatures"][0].update(sig=""),
        "changed after",
    ),
    "no key": (lambda d: d["verificationMaterial"].clear(), "publicKey"),
    "a certificate": (lambda d: d["verificationMaterial"].update(certificate={}), "certificate"),
}


@pytest.mark.parametrize("case", ENVELOPES)
def test_an_envelope_is_refused_with(case: str, bundle: Path, public_key: PublicKey) -> None:
    change, message = ENVELOPES[case]
    document = json.loads((bundle / "model.sig").read_bytes())
    change(document)
    with pytest.raises(SignatureError, match=message):
        verify_envelope(json.dumps(document).encode(), [public_key])


def test_an_endless_signature_is_refused_before_it_is_parsed(public_key: PublicKey) -> None:
    with pytest.raises(SignatureError, match="at most"):
        verify_envelope(b" " * (MAX_SIGNATURE_BYTES + 1), [public_key])


def test_a_deeply_nested_signature_is_refused(public_key: PublicKey) -> None:
    with pytest.raises(SignatureError, match="not valid JSON"):
        verify_envelope(b"[" * 500_000, [public_key])


def test_a_signature_over_a_bundle_without_manifest_is_refused(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    manifest = (bundle / "manifest.json").read_bytes()
    (bundle / "manifest.json").unlink()
    sign_folder(bundle, private_key)
    (bundle / "manifest.json").write_bytes(manifest)
    with pytest.raises(SignatureError, match=r"'manifest.json' is not in the signed list"):
        verify_folder(bundle, [public_key])


def test_a_signed_file_that_the_manifest_does_not_know_is_refused(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    (bundle / "stray").write_bytes(b"")
    sign_folder(bundle, private_key)
    with pytest.raises(SignatureError, match="'stray' is in the signature but not in the manifest"):
        verify_folder(bundle, [public_key])


def test_a_file_of_the_manifest_that_was_not_signed_is_refused(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    (bundle / "report.json").unlink()
    sign_folder(bundle, private_key)
    match = "'report.json' is in the manifest but not in the signature"
    with pytest.raises(SignatureError, match=match):
        verify_folder(bundle, [public_key])


def test_of_several_extra_files_the_first_by_name_is_told(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    for letter in "hgfedcba":
        (bundle / f"extra-{letter}").write_bytes(b"")
    with pytest.raises(SignatureError, match="'extra-a' is not in the signed list"):
        verify_folder(bundle, [public_key])
    sign_folder(bundle, private_key)
    with pytest.raises(SignatureError, match="'extra-a' is in the signature"):
        verify_folder(bundle, [public_key])


def test_a_manifest_that_disagrees_with_the_signature_is_refused(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    (bundle / "report.json").write_bytes(b"[]")
    sign_folder(bundle, private_key)
    with pytest.raises(SignatureError, match=r"different digests of 'report.json'"):
        verify_folder(bundle, [public_key])


def test_a_signature_without_a_name_has_that_of_the_folder(
    bundle: Path, private_key: PrivateKey, public_key: PublicKey
) -> None:
    sign_folder(bundle, private_key)
    assert verify_folder(bundle, [public_key]).signed.name == bundle.name
    sign_folder(bundle, private_key, name="digits-1.2.0")
    assert verify_folder(bundle, [public_key]).signed.name == "digits-1.2.0"


def test_the_digest_names_the_content_and_not_the_signer(
    bundle: Path, other_key: PrivateKey, public_key: PublicKey
) -> None:
    before = verify_folder(bundle, [public_key]).digest
    assert sign_folder(bundle, other_key, name="by another") == before
    assert decode_manifest((bundle / "manifest.json").read_bytes()).facts.name == "digits"
