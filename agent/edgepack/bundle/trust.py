"""Trust: the only place that decides if a bundle may be installed."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from edgepack.bundle.keys import PublicKey
from edgepack.bundle.manifest import Manifest, Variant
from edgepack.bundle.signature import SignedList, verify_envelope
from edgepack.bundle.verify import VerifiedBundle, verify_folder, verify_manifest


class TrustPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Says of a bundle whether it may be installed, and why not.

    Devices, fleets and the rehearsal of a build ask it; none of them looks at keys by itself.

    Attributes:
        keys: Whose bundles are accepted; the signature of any one of them suffices.
        allow_degraded_unsafe: Accept variants whose gates were overridden when they were built.
    """

    keys: tuple[PublicKey, ...]
    allow_degraded_unsafe: bool = False

    def check_manifest(self, signature: bytes, manifest: bytes) -> tuple[SignedList, Manifest]:
        """Judge a bundle by its two first files: all that there is before the rest is fetched.

        Args:
            signature: Bytes of `model.sig`.
            manifest: Bytes of `manifest.json`.

        Raises:
            SignatureError: No trusted key signed them, or they do not belong together.
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
        """Return why a variant of a trusted bundle may not run; "" if it may."""
        if variant.facts.degraded and not self.allow_degraded_unsafe:
            return (
                "a gate was overridden when it was built (degraded), and this device's "
                "settings do not allow that"
            )
        return ""
