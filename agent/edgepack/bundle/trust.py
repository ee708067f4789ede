"""Trust: the only place that decides if a bundle may be installed."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Manifest, Variant
from edgepack.bundle.signature import SignedList, verify_envelope
from edgepack.bundle.verify import VerifiedBundle, verify_folder, verify_manifest


class TrustPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Decision whether a bundle may be installed, with the reason.

    Devices, fleets and the preflight of a build use the policy; none checks keys directly.

    Attributes:
        keys: Keys of accepted signers; the signature of any key suffices.
        allow_degraded_unsafe: Accept variants with gates that were overridden at build time.
    """

    keys: tuple[PublicKey, ...]
    allow_degraded_unsafe: bool = False

    def check_manifest(self, signature: bytes, manifest: bytes) -> tuple[SignedList, Manifest]:
        """Judge a bundle by its two first files: all that there is before the rest is fetched.

        Args:
            signature: Bytes of `model.sig`.
            manifest: Bytes of `manifest.json`.

        Raises:
            SignatureError: No trusted key signed both, or the two files do not belong together.
            BundleError: A field is malformed.
        """
        signed = verify_envelope(signature, self.keys)
        return signed, verify_manifest(manifest, signed)

    def check_folder(
        self, folder: Path, *, complete: bool = True, checkpoint: Callable[[], None] = lambda: None
    ) -> VerifiedBundle:
        """Judge a bundle down to every byte; see `verify_folder` for arguments and errors."""
        return verify_folder(folder, self.keys, complete=complete, checkpoint=checkpoint)

    def refusal_of(self, variant: Variant) -> str:
        """Return why a variant of a trusted bundle may not run; "" if allowed."""
        if variant.facts.degraded and not self.allow_degraded_unsafe:
            return (
                "a gate was overridden when it was built (degraded), and this device's "
                "settings do not allow that"
            )
        return ""
