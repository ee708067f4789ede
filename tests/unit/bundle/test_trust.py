"""The trust policy decides about the installation of a bundle, with a reason."""

import json
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey, PublicKey
from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import BundleError, SignatureError
from tests.simulators.manifests import make_variant


def head(bundle: Path) -> tuple[bytes, bytes]:
    return (bundle / "model.sig").read_bytes(), (bundle / "manifest.json").read_bytes()


def test_what_a_trusted_key_signed_is_accepted_by_its_head_and_as_a_whole(
    bundle: Path, public_key: PublicKey
) -> None:
    trust = TrustPolicy(keys=(public_key,))
    signed, manifest = trust.check_manifest(*head(bundle))
    whole = trust.check_folder(bundle)
    assert (whole.digest, whole.manifest) == (signed.digest, manifest)


def test_nobody_else_is_believed(bundle: Path, other_key: PrivateKey) -> None:
    for keys in ((), (other_key.public_key(),)):
        trust = TrustPolicy(keys=keys)
        with pytest.raises(SignatureError, match="not trusted"):
            trust.check_manifest(*head(bundle))
        with pytest.raises(SignatureError, match="not trusted"):
            trust.check_folder(bundle)


def test_a_manifest_that_is_not_the_signed_one_is_refused(
    bundle: Path, public_key: PublicKey
) -> None:
    signature, content = head(bundle)
    other = json.dumps(json.loads(content)).encode()
    with pytest.raises(BundleError, match="is not what was signed"):
        TrustPolicy(keys=(public_key,)).check_manifest(signature, other)


def test_degraded_variants_of_a_trusted_bundle_need_leave(public_key: PublicKey) -> None:
    trust = TrustPolicy(keys=(public_key,))
    assert trust.refusal_of(make_variant()) == ""
    assert "a gate was overridden" in trust.refusal_of(make_variant(degraded=True))
    lenient = TrustPolicy(keys=(public_key,), allow_degraded_unsafe=True)
    assert lenient.refusal_of(make_variant(degraded=True)) == ""
