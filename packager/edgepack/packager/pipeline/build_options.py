"""Options of a build: names, types and help, for `edgepack build` and for Python."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from edgepack.packager.config.trusted_code import TrustedCode
from edgepack.packager.gates.user_metric import Metric
from edgepack.packager.profiles.schema import Preference
from edgepack.packager.search.combinations import SearchedKey
from edgepack.packager.source.fixed_inputs import Numbers
from edgepack.tasks.arrays import Tensor

BUILDER_VARIABLE = "EDGEPACK_BUILDER_ID"

SampleSource = str | Path | Iterable[Mapping[str, Tensor]]
"""Where samples are: a path, `random:N`, or the arrays themselves, one dictionary a sample."""


class Option(NamedTuple):
    """Command line option of a build.

    Attributes:
        help: Meaning of the option, for people.
        flags: Its names; by default from the name of the field.
        metavar: How a value is written.
        multiple: Whether the option may be given several times.
        path: Whether a value is a path.
        envvar: Environment variable that replaces the option.
    """

    help: str
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    multiple: bool = False
    path: bool = False
    envvar: str | None = None


class BuildOptions(TypedDict, total=False):
    """Options of a build; each may be left out. `edgepack build` derives its options from these
    fields.

    Python accepts more than text: `calibration` and `evaluation` may be an iterable of
    dictionaries, by input name an array of the input's shape and dtype, a dictionary per sample.
    `metric` may be a function: its argument is `run`, which takes the inputs of an inference by
    name and returns the outputs by name; its result is a number. `search` may be a dictionary,
    `{"quantize.activations": ["uint8", "uint16"]}`. `budget` may be seconds. `trust_config` may be
    the `NamedCode` entries that a person confirmed.
    """

    profiles: Annotated[
        Sequence[str | Path],
        Option(
            "Hardware profiles, names or paths of TOML files, in the order of preference.",
            flags=("--profile",),
            multiple=True,
            metavar="NAME",
        ),
    ]
    calibration: Annotated[
        SampleSource | None,
        Option(
            "Samples for ranges and the search: folder of .npz/.npy/images, one .npz, ONNX test "
            "data, random:N.",
            metavar="PATH",
        ),
    ]
    evaluation: Annotated[
        SampleSource | None,
        Option(
            "Held-out samples likewise; by default a share of the calibration is held out.",
            metavar="PATH",
        ),
    ]
    labels: Annotated[
        str | Path | None,
        Option("File with the class of each evaluation sample, one a line.", path=True),
    ]
    metric: Annotated[
        str | Metric | None,
        Option(
            "Your own measure of accuracy, greater is better: FUNCTION(run) calls run(feeds) for "
            "each of its samples and returns a number.",
            metavar="MODULE:FUNCTION",
        ),
    ]
    search: Annotated[
        Mapping[str, Any] | Sequence[SearchedKey],
        Option(
            "Values of a profile's setting to try, e.g. quantize.activations=uint8,uint16.",
            multiple=True,
            metavar="KEY=A,B,C",
        ),
    ]
    budget: Annotated[
        str | float | None,
        Option("Time for the build, e.g. 90s, 10m, 1h; no limit by default.", metavar="TIME"),
    ]
    prefer: Annotated[
        Preference | None,
        Option("What a quantized model must be to be published, instead of what the profile says."),
    ]
    key: Annotated[
        str | Path | None,
        Option(
            "Private key that signs: a file (PEM), or pkcs11:token=…;object=…",
            metavar="PATH|URI",
            envvar="EDGEPACK_KEY",
        ),
    ]
    output: Annotated[
        str | Path | None,
        Option(
            "Bundle: NAME.edgepack (one file), or a folder's name; by default NAME- "
            "VERSION.edgepack.",
            flags=("-o", "--output"),
            path=True,
        ),
    ]
    name: Annotated[
        str | None,
        Option("Model name; by default from the output's or the model's name."),
    ]
    version: Annotated[
        str | None,
        Option("Model version, e.g. 1.2.0; or in the output's name."),
    ]
    release: Annotated[
        int | None,
        Option("Release counter; 1.2.0 gives 1002000 by default."),
    ]
    shapes: Annotated[
        Mapping[str, Sequence[int]],
        Option(
            "Shapes to fix, by input name.",
            flags=("--shape",),
            multiple=True,
            metavar="INPUT=1,3,320,320",
        ),
    ]
    values: Annotated[
        Mapping[str, Numbers],
        Option(
            "Inputs that become constants of the model: what a device never changes.",
            flags=("--value",),
            multiple=True,
            metavar="INPUT=16000",
        ),
    ]
    context: Annotated[
        int | None,
        Option(
            "Tokens of prompt and answer together, for a model that generates texts; by default as "
            "many as the model takes.",
            metavar="TOKENS",
        ),
    ]
    adapter: Annotated[
        str | Path | None,
        Option(
            "Folder of an adapter (LoRA, as PEFT saves it), for a release of the adapter. MODEL "
            "is then the folder that the base was built from, or left out.",
            path=True,
        ),
    ]
    base: Annotated[
        str | Path | None,
        Option("Bundle that an adapter is for, built with --adapters.", path=True),
    ]
    decryption_key: Annotated[
        str | Path | None,
        Option("Private key (PEM) of a recipient of an encrypted base (--base).", path=True),
    ]
    adapters: Annotated[
        bool,
        Option(
            "Make room for adapters (LoRA) in a model that generates texts: releases of their own, "
            "which --adapter builds.",
        ),
    ]
    config: Annotated[
        str | Path | None,
        Option(
            "Declarations; the command reads ./edgepack.toml if there is one. Other options count "
            "before it.",
            path=True,
        ),
    ]
    toolchains: Annotated[
        Mapping[str, str],
        Option(
            "Python interpreter of an environment like a profile's devices: its variant is tried, "
            "compiled, timed and rehearsed there.",
            flags=("--toolchain",),
            multiple=True,
            metavar="PROFILE=PYTHON",
        ),
    ]
    prove: Annotated[
        Sequence[str],
        Option(
            "Board that proves the variants of matching profiles: candidates, golden samples and "
            "timing run there, over ssh.",
            multiple=True,
            metavar="ssh://USER@HOST[:PORT][/PYTHON]",
        ),
    ]
    prove_wheels: Annotated[
        str | Path | None,
        Option(
            "Folder of wheels for packages that a board lacks; gone from the board after the "
            "build.",
            path=True,
            metavar="FOLDER",
        ),
    ]
    plain_runtimes: Annotated[
        Sequence[str],
        Option(
            "Python interpreter of an environment with another release of ONNX Runtime, such as "
            "the oldest in use: variants are run there by themselves too.",
            flags=("--plain-runtime",),
            multiple=True,
            metavar="PYTHON",
        ),
    ]
    hooks: Annotated[
        str | Path | None,
        Option("Folder of firmware hooks to ship with the model.", path=True),
    ]
    firmware: Annotated[
        Sequence[str],
        Option(
            "Firmware that devices must run for this model; the agent installs the file.",
            multiple=True,
            metavar="INSTALLER[/BOARD]:VERSION=FILE",
        ),
    ]
    encrypt_to: Annotated[
        Sequence[str | Path],
        Option(
            "Who alone can read the model: a device's certificate, a folder of them, a public key "
            "(PEM).",
            multiple=True,
            path=True,
            metavar="CERT",
        ),
    ]
    delta_from: Annotated[
        Sequence[str | Path],
        Option(
            "An older bundle that devices run: carry what changed since, where that is much "
            "shorter.",
            multiple=True,
            path=True,
            metavar="BUNDLE",
        ),
    ]
    feedback: Annotated[
        str | Path | None,
        Option("What a fleet measured of earlier releases: edgepack fleet feedback.", path=True),
    ]
    captured: Annotated[
        Sequence[str | Path],
        Option(
            "Samples captured by a device, added to calibration only: edgepack-agent samples.",
            multiple=True,
            path=True,
            metavar="FOLDER",
        ),
    ]
    leave_out_pictures: Annotated[
        bool,
        Option(
            "Ship no pictures or sounds of samples; then no device proves how these are prepared."
        ),
    ]
    created_at: Annotated[
        str | None,
        Option(
            "RFC 3339 time to record; by default SOURCE_DATE_EPOCH, else none, so that equal "
            "inputs give equal bytes.",
            metavar="TIME",
        ),
    ]
    builder_id: Annotated[
        str | None,
        Option(
            "URI that names who builds, for the provenance, e.g. https://ci.example.com/edgepack.",
            metavar="URI",
            envvar=BUILDER_VARIABLE,
        ),
    ]
    allow_degraded: Annotated[
        bool,
        Option("Publish what misses its budget, marked so."),
    ]
    strict: Annotated[
        bool,
        Option("Refuse a variant whose verdict says little of the task."),
    ]
    keep_going: Annotated[
        bool,
        Option("Build the other profiles when one fails."),
    ]
    replace: Annotated[
        bool,
        Option("Replace a bundle that is there already.", flags=("--force",)),
    ]
    trust_config: Annotated[
        TrustedCode,
        Option(
            "Use the programs, libraries, modules and files that edgepack.toml and profiles name."
        ),
    ]
