"""Looks for operators that a provider, or its simulator, computes wrongly without a word.

Small models are quantized as a build would, and run on the provider and on the CPU. Errors beyond
rounding are listed, and so are differences between runs and rejections.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx

from benchmarks.operators.cases import Case, cases
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import save_model
from edgepack.packager.passes.context import PassContext
from edgepack.packager.passes.runner import run_float_passes
from edgepack.packager.profiles.pass_settings import WIDE_TYPES
from edgepack.packager.profiles.reading import resolve_profile
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import CandidateSpec, QuantizationMethod
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.evaluator import find_venue, open_plain, profile_settings
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.runtime.trial import Trial, try_model
from edgepack.packager.tensors.sequence import Feeds, Samples

_PROFILES = ("qnn-htp", "qnn-htp-a8w8")
_AS_EXPORTED = {
    "pass": [{"name": "apply_workarounds", "ops": []}, {"name": "quantize", "fixed_scales": False}]
}
_SAMPLES = 4
_RUN = (0, 0, 1)
"""Samples that run on the provider; one twice, to see whether it gives the same."""

_MOST_WIDE, _MOST_NARROW = 0.03, 0.06
"""Root-mean-square errors, as shares of an output, up to which rounding explains them: with 16
bits, and with 8, where an attention came to .03."""

_TIMEOUT_S = 120.0
WRONG = "WRONG"
_KNOWN = (
    "Resize cubic align_corners 2x2",
    "ScatterElements",
    "ReduceL2 of much",
    "Conv Mish",
)
"""What QNN's simulator (onnxruntime-qnn 2.7.0) computes wrongly and no pass rewrites; see
docs/targets/qnn-htp.md."""


class _KeptProcess(ProviderProcess):
    """Starts once, and again where the child ended: to load a vendor's library takes longest."""

    def start_anew(
        self, subject: str, first: bytes = b"", command: Sequence[str] | None = None
    ) -> None:
        if not self.subject:
            super().start_anew(subject, first, command)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a graph.

    Attributes:
        error: Root-mean-square error as a share of the output; None without a run.
        varies: Whether the same sample gave different outputs.
        words: Reason for a missing run, or operators left to the CPU.
    """

    error: float | None = None
    varies: bool = False
    words: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 after an unknown error."""
    given = _parse(arguments)
    changes = _AS_EXPORTED if given.as_exported else {}
    profiles = [resolve_profile(name, changes) for name in given.profile or _PROFILES]
    chosen = [case for case in cases() if given.only.lower() in case.name.lower()]
    wrong: dict[str, None] = {}
    with _KeptProcess() as kept:
        for case, profile in itertools.product(chosen, profiles):
            found = scan(case, profile, kept)
            if judge(found, profile) == WRONG:
                found = scan(case, profile)  # by itself: what ran there before is not to blame
            verdict = judge(found, profile)
            print(_line(case, profile, found, verdict), flush=True)
            if verdict == WRONG:
                wrong[case.name] = None
    seen = {case.name for case in chosen}
    unknown = [name for name in wrong if name not in _KNOWN]
    righted = [name for name in _KNOWN if name in seen and name not in wrong]
    print(f"\n{len(chosen)} graphs, {len(wrong)} operators wrong: {', '.join(wrong) or 'none'}")
    print(f"not known so far: {', '.join(unknown) or 'none'}")
    if righted:
        print(f"known as wrong, and right now: {', '.join(righted)}")
    return int(bool(unknown))


def scan(case: Case, profile: Profile, process: ProviderProcess | None = None) -> Found:
    """Quantize a graph and run the graph on the profile's provider and on the CPU.

    Args:
        case: The graph.
        profile: How, and where.
        process: Runs the graph; None starts a separate process.
    """
    model = case.model()
    samples = _samples(model, case)
    with tempfile.TemporaryDirectory(prefix="scan-") as folder:
        try:
            path = _quantize(model, profile, samples, Path(folder))
            trial = try_model(
                path,
                samples.pick(_RUN),
                profile_settings(profile),
                timeout_s=_TIMEOUT_S,
                process=process,
                variant=profile.name,
            )
        except BuildError as error:
            return Found(words=f"refused: {' '.join(error.problem.split())}")
        run = open_plain(path)
        return _compare([run(samples.read(i))["y"].astype(np.float64) for i in _RUN], trial)


def judge(found: Found, profile: Profile) -> str:
    """Return `WRONG`, `right`, or `-` without a run."""
    if found.error is None:
        return "-"
    most = _MOST_WIDE if _is_wide(profile) else _MOST_NARROW
    return WRONG if found.error > most or found.varies else "right"


def _is_wide(profile: Profile) -> bool:
    return profile.quantize is not None and profile.quantize.activations in WIDE_TYPES


def _quantize(model: onnx.ModelProto, profile: Profile, samples: Samples, folder: Path) -> Path:
    if profile.quantize is None:
        raise BuildError(f"profile '{profile.name}' quantizes nothing", remedy="another profile")
    context = PassContext(
        profile_name=profile.name,
        limits=profile.limits,
        samples=samples,
        work_dir=folder,
        simulator_version=find_venue(profile).version,
    )
    prepared = run_float_passes(model, profile, context, silent).model
    quantizer = StaticCandidateMaker(
        prepared, profile.quantize, samples, work_dir=folder, progress=silent
    )
    path = folder / "variant" / "model.onnx"
    path.parent.mkdir()
    save_model(quantizer.build(CandidateSpec(method=QuantizationMethod(base="minmax"))).model, path)
    return path


def _samples(model: onnx.ModelProto, case: Case) -> Samples:
    shape = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim]

    def read(index: int) -> Feeds:
        rng = np.random.default_rng(index)
        is_positive = case.values == "positive"
        values = rng.uniform(0.3, 3.0, shape) if is_positive else rng.normal(0.0, 1.0, shape)
        return {"x": values.astype(np.float32)}

    return Samples(count=_SAMPLES, read=read, source="drawn")


def _compare(wanted: Sequence[np.ndarray], trial: Trial) -> Found:
    errors = []
    for want, outputs in zip(wanted, trial.outputs, strict=True):
        got = outputs["y"].astype(np.float64)
        is_comparable = got.shape == want.shape and bool(np.isfinite(got).all())
        size = max(float(np.linalg.norm(want)), 1e-9)
        errors.append(float(np.linalg.norm(got - want)) / size if is_comparable else np.inf)
    first, again = (outputs["y"] for outputs in trial.outputs[:2])
    left = sorted(set(trial.placement.left) - {"QuantizeLinear", "DequantizeLinear"})
    return Found(
        error=max(errors),
        varies=not np.array_equal(first, again),
        words=f"left to the CPU: {', '.join(left)}" if left else "",
    )


def _line(case: Case, profile: Profile, found: Found, verdict: str) -> str:
    size = "x".join(map(str, case.size))
    error = "" if found.error is None else f"{found.error:.4f}"
    words = "differs from run to run; " * found.varies + found.words
    return (
        f"{case.name:45} {size:>9} {profile.name:14} {error:>8} {verdict:6} {words[:90]}".rstrip()
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.operators",
        description=__doc__.splitlines()[0] if __doc__ else "",
        epilog="Some 500 graphs, with two profiles each, take five minutes on QNN's simulator.",
    )
    parser.add_argument("--only", default="", help="graphs with this in their name")
    parser.add_argument("--profile", action="append", help=f"default: {' and '.join(_PROFILES)}")
    parser.add_argument(
        "--as-exported",
        action="store_true",
        help="without what apply_workarounds and fixed_scales do",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
