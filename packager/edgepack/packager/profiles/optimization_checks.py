"""Check that later passes can read the operators of a recipe's optimization."""

from collections.abc import Iterator
from typing import NamedTuple

from edgepack.packager.profiles.pass_settings import Float16, FuseTransformer, Optimize, Quantize
from edgepack.packager.profiles.schema import Limits, Profile

_STANDARD = frozenset({"LayerNormalization", "Gelu"})


class Contradiction(NamedTuple):
    """Contradictory settings: place, reason and remedy."""

    place: str
    problem: str
    remedy: str


def check_optimization(profile: Profile) -> Iterator[Contradiction]:
    """Find levels and fusions that the provider or the lowering cannot use."""
    lowering = profile.lowering
    for entry in profile.passes:
        if isinstance(entry, Optimize) and entry.level != "O1":
            yield from _check_level(entry.level, profile.limits)
            if isinstance(lowering, Quantize):
                yield Contradiction(
                    "pass[optimize].level",
                    f"{entry.level} makes fused operators, which have no integer form, and "
                    "quantize comes after it",
                    "level = 'O1'",
                )
            if entry.level == "O4" and not (
                isinstance(lowering, Float16) and profile.device.type == "gpu"
            ):
                yield Contradiction(
                    "pass[optimize].level",
                    "O4 is for GPUs and half precision",
                    "[[pass]] name = 'float16' on a device of type 'gpu', or level = 'O3'",
                )
        if isinstance(entry, FuseTransformer):
            for op_type in entry.ops:
                if op_type not in _STANDARD and not profile.limits.reads_microsoft(op_type):
                    yield Contradiction(
                        "pass[fuse_transformer].ops",
                        f"{op_type} is ONNX Runtime's own, and the provider does not read it",
                        "leave it out, or name it in limits.microsoft_ops",
                    )


def _check_level(level: str, limits: Limits) -> Iterator[Contradiction]:
    if not limits.reads_microsoft("*"):
        yield Contradiction(
            "pass[optimize].level",
            f"{level} makes operators of ONNX Runtime's own, and the provider does not read all "
            "of them",
            "level = 'O1', or limits.microsoft_ops = ['*'] where it does",
        )
