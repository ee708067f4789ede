"""Variants that passed their gates, before they are in a bundle."""

from pathlib import Path
from typing import Any

import msgspec

from edgepack.bundle.manifest import FixedDecoder, PlainRuntime
from edgepack.packager.reports.report import RefusedProfile, VariantReport


class PreparedVariant(VariantReport, frozen=True, kw_only=True):
    """A variant that passed its gates, on disk but not yet in a bundle.

    The variant has the facts of its report, times included, but no `files` and no rehearsal yet.

    Attributes:
        folder: Folder that holds its files (model, external data, context binaries).
        model_file: The model inside `folder`.
        compatibility_string, session_options, provider_options: See `Variant`.
        plain_runtime, plain_provider, fixed_decoder: See `VariantFacts`; None if unknown.
        timed_notes: Notes with times; never part of the bundle's bytes.
    """

    folder: Path
    model_file: str
    compatibility_string: str
    session_options: dict[str, str]
    provider_options: dict[str, str]
    plain_runtime: PlainRuntime | None = None
    plain_provider: PlainRuntime | None = None
    fixed_decoder: FixedDecoder | None = None
    timed_notes: tuple[str, ...] = ()

    def told_of(self, kind: type[msgspec.Struct]) -> dict[str, Any]:
        """Return the fields that another struct shares, by name."""
        return {name: getattr(self, name) for name in kind.__struct_fields__ if hasattr(self, name)}


class PreparedVariants(msgspec.Struct, frozen=True, kw_only=True):
    """Prepared variants.

    Attributes:
        variants: In the order of preference.
        refused: Profiles without a variant; only with `keep_going`, or if the time of the build
            ended after other variants were finished.
    """

    variants: tuple[PreparedVariant, ...]
    refused: tuple[RefusedProfile, ...] = ()
