"""The child of a verification: opens the serving variant and runs the golden samples. See
`verification`.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from edgepack.agent.runtime.adapters import open_variant_session
from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.own_answers import Repeated, repeat, why_other
from edgepack.agent.runtime.plain_files import plain_files
from edgepack.agent.runtime.sessions import Session, Tensor
from edgepack.agent.runtime.verification import FirstAnswers, VerificationRequest, Verified
from edgepack.bundle.golden import Golden, compare_outputs, read_golden
from edgepack.bundle.manifest import GOLDEN_FILE, Variant
from edgepack.decoding import decode_json
from edgepack.errors import EdgepackError

SAMPLES_SHARE = 0.5
"""Share of the time limit that further samples may take."""
_LOWEST_PRIORITY = 19

Sample = Mapping[str, Tensor]


def verify_here(request: VerificationRequest) -> Verified:
    """Verify in this process, which should be a child: a provider may crash or hang.

    First answers must also hold the tolerances of the variant.
    """
    folder, variant = Path(request.bundle_folder), request.variant
    try:
        with plain_files(folder, variant, request.key_file) as plain:
            golden = read_golden(plain / GOLDEN_FILE)
            session = open_variant_session(
                plain, variant, request.base, threads=request.threads, key_file=request.key_file
            )
        if request.first is not None:
            return _compare(request.first, golden, session, request.timeout_s)
        return _begin(variant, golden, session, request.timeout_s)
    except (EdgepackError, ValueError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        return Verified(trouble=problem)


def _begin(variant: Variant, golden: Golden, session: Session, timeout_s: float) -> Verified:
    """Make the first answers, and judge them."""
    repeated: list[Repeated] = []
    for feeds in _in_time(golden.inputs, timeout_s):
        repeated.append(repeat(partial(session.run, feeds)))
    got, limits = [one.outputs for one in repeated], variant.facts
    comparison = compare_outputs(
        golden.outputs[: len(got)], got, limits.tolerances, limits.agreements
    )
    if not comparison.right:
        because = f"golden samples are wrong: {comparison.because}"
        return Verified(because=because, samples=len(got))
    first = FirstAnswers(
        answers=tuple(one.answer for one in repeated),
        worst=max(one.worst for one in repeated),
    )
    return Verified(samples=len(got), first=first)


def _compare(first: FirstAnswers, golden: Golden, session: Session, timeout_s: float) -> Verified:
    """Compare answers with the first answers, up to the first difference."""
    samples = 0
    for feeds in _in_time(golden.inputs[: len(first.answers)], timeout_s):
        samples += 1
        if because := why_other(first, samples - 1, session.run(feeds)):
            return Verified(because=because, samples=samples)
    return Verified(samples=samples)


def _in_time(inputs: Sequence[Sample], timeout_s: float) -> Iterator[Sample]:
    """Yield the first sample, and more until their share of the time limit is over."""
    until = time.monotonic() + SAMPLES_SHARE * timeout_s
    for number, feeds in enumerate(inputs):
        if number and time.monotonic() > until:
            return
        yield feeds


def main() -> None:
    """Read a request, verify and answer. For the child."""
    request = decode_json(take_request(), VerificationRequest)
    with contextlib.suppress(OSError):
        os.nice(_LOWEST_PRIORITY)
    answer = keep_stdout_clean(request.timeout_s)
    with answer:
        answer.write(msgspec.json.encode(verify_here(request)) + b"\n")


if __name__ == "__main__":
    main()
