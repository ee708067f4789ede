"""Division of samples, so that calibration and evaluation never share a sample.

Samples that devices captured are only for ranges: candidates are chosen and evaluated on given
samples, so that the verdicts of two releases can be compared, and unchecked inputs decide nothing.
For an evaluation on captured samples, give the samples as `--evaluation`.
"""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.tensors.sequence import Samples, SampleSplit
from edgepack.text import counted

CALIBRATION_SHARE = 0.5
SEARCH_SHARE = 0.2
"""Of samples without a held-out set of their own; the rest, 30 %, is held out."""

_SEARCH_SHARE_OF_CALIBRATION = 0.25
"""Where the held-out samples came separately."""

_SEED = b"edgepack split 1\0"


def split_samples(
    given: OpenedSamples, evaluation: OpenedSamples | None, tells: Sequence[bool] = ()
) -> SampleSplit:
    """Divide by a hash of each sample's content: the same samples always fall the same way.

    Neither the order nor the names of the files matter, and an added sample moves few others. Equal
    samples were left out before, so none can be on two sides. Series stay whole.

    Args:
        given: The calibration samples.
        evaluation: Held-out samples, if given separately.
        tells: Calibration samples with findings, if searched: each part gets its share.

    Returns:
        Three parts, none empty, none sharing a sample.

    Raises:
        BuildError: There are too few different samples.
    """
    if evaluation is not None:
        return _with_evaluation(given, evaluation, tells)
    order = _mix(_shuffled(given), tells)
    count = len(order)
    if count < 3:
        nouns = ("series", "series") if given.samples.steps else ("sample", "samples")
        raise BuildError(
            f"{count} different {f'{nouns[0]} is' if count == 1 else f'{nouns[1]} are'} too few: "
            "calibration, search and the held-out check need at least one each",
            found_in=" ".join((f"{given.samples.source}.", *given.notes[:1])).rstrip("."),
            remedy="give at least 3 (100 to 300 are usual), or held-out samples with --evaluation",
        )
    calibration = max(1, round(count * CALIBRATION_SHARE))
    search = max(1, round(count * SEARCH_SHARE))
    if calibration + search >= count:
        calibration = count - search - 1
    parts = (order[:calibration], order[calibration : calibration + search])
    held_out = order[calibration + search :]
    return SampleSplit(
        calibration=_pick(given, parts[0]),
        search=_pick(given, parts[1]),
        held_out=_pick(given, held_out),
        sha256=_digest(given, *parts),
        held_out_sha256=_digest(given, held_out),
    )


def describe(split: SampleSplit) -> str:
    """Return the split in words, for the report."""
    return (
        f"{counted(split.calibration.count, 'sample')} for ranges, {split.search.count} to choose "
        f"between candidates, {split.held_out.count} held out for the verdict"
        + (f", in series of {split.held_out.steps}" if split.held_out.steps else "")
    )


def _with_evaluation(
    given: OpenedSamples, evaluation: OpenedSamples, tells: Sequence[bool]
) -> SampleSplit:
    held_out = set(evaluation.digests)
    order = [unit for unit in _shuffled(given) if held_out.isdisjoint(_digests(given, unit))]
    order = _mix(order, tells)
    if len(order) < 2:
        raise BuildError(
            "at least 2 calibration samples must be left that are not among the held-out ones; "
            f"there {'is' if len(order) == 1 else 'are'} {len(order)}",
            found_in=f"{given.samples.source} and {evaluation.samples.source}",
            remedy="give evaluation samples that are not calibrated with",
        )
    search = max(1, round(len(order) * _SEARCH_SHARE_OF_CALIBRATION))
    return SampleSplit(
        calibration=_pick(given, order[search:]),
        search=_pick(given, order[:search]),
        held_out=evaluation.samples,
        sha256=_digest(given, order[search:], order[:search]),
        held_out_sha256=_digest(evaluation, [range(len(evaluation.digests))]),
    )


def _shuffled(given: OpenedSamples) -> list[range]:
    """Return the places of different samples, or series, in the order of hashes."""
    steps = given.samples.steps or 1
    units = [range(start, start + steps) for start in range(0, len(given.digests), steps)]
    keys = {_SEED + b"".join(_digests(given, unit)): unit for unit in reversed(units)}
    return [keys[key] for key in sorted(keys, key=lambda key: hashlib.sha256(key).digest())]


def _digests(given: OpenedSamples, places: Sequence[int]) -> list[bytes]:
    return [given.digests[place] for place in places]


def _mix(order: list[range], tells: Sequence[bool]) -> list[range]:
    """Return samples with findings evenly among the others; else the given order."""
    if not tells:
        return order
    places: dict[range, float] = {}
    for kind in (True, False):
        group = [unit for unit in order if any(tells[place] for place in unit) is kind]
        places |= {unit: (n + 0.5) / len(group) for n, unit in enumerate(group)}
    return sorted(order, key=places.__getitem__)


def _pick(given: OpenedSamples, units: Sequence[range]) -> Samples:
    return given.samples.pick_series(_in_order(units))


def _digest(
    given: OpenedSamples, calibration: Sequence[range], search: Sequence[range] = ()
) -> str:
    ranged, chosen = _in_order(calibration), _in_order(search)
    digest = hashlib.sha256(len(ranged).to_bytes(8))
    for one in _digests(given, (*ranged, *chosen)):
        digest.update(one)
    return digest.hexdigest()


def _in_order(units: Sequence[range]) -> list[int]:
    return sorted(place for unit in units for place in unit)


class CapturedSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Captured samples that were added.

    Attributes:
        count: Number of samples, without given samples and duplicates.
        sha256: Digest over the samples in order, hex; "" without samples.
    """

    count: int = 0
    sha256: str = ""

    @property
    def note(self) -> str:
        """Note for a person, as a sentence."""
        return (
            f"{counted(self.count, 'sample')} that devices captured were added to those for "
            f"ranges, sha256:{self.sha256[:12]}."
        )


def add_captured(
    split: SampleSplit, given: Sequence[OpenedSamples], captured: Sequence[OpenedSamples]
) -> tuple[SampleSplit, CapturedSamples]:
    """Add captured samples to the samples for ranges.

    Args:
        split: The given samples, divided.
        given: All given samples; a captured duplicate stays only in its part.
        captured: Of each place.

    Returns:
        The split, and the added samples.

    Raises:
        BuildError: A sample is a step of a sequence, which is meaningless without the steps before.
    """
    known = {digest for opened in given for digest in opened.digests}
    added: list[tuple[Samples, int]] = []
    digest = hashlib.sha256()
    for opened in captured:
        if opened.samples.states or opened.samples.decoder is not None:
            raise BuildError(
                "captured samples are single steps, and this model carries states from one to the "
                "next",
                found_in=opened.samples.source,
                remedy="leave --captured out, and record whole sequences for --calibration",
            )
        for index, one in enumerate(opened.digests):
            if one not in known:
                known.add(one)
                digest.update(one)
                added.append((opened.samples, index))
    if not added:
        return split, CapturedSamples()
    calibration = split.calibration.extend(added)
    told = CapturedSamples(count=len(added), sha256=digest.hexdigest())
    both = hashlib.sha256(f"{split.sha256} {told.sha256}".encode()).hexdigest()
    return replace(split, calibration=calibration, sha256=both), told
