"""Numbers of the benchmark, as a page and as JSON."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.generative.contestants import CONTESTANTS, Built
from benchmarks.generative.limits import Rounded, limit_rows
from benchmarks.generative.pace import Pace
from benchmarks.generative.parts import PartTime
from benchmarks.generative.quality import Quality
from benchmarks.packager.host import read_host

PAGE = """\
# Language models, measured

What tools make of a language model, and how fast each then writes texts. Made by
`make bench-generative` on {machine}; [the numbers](generative.json) as JSON. The machine is shared
with other programs, so processor time counts, and tools write their texts in turn. Versions:
{versions}.

- **Trained**: a Llama of {trained_mb:.1f} MB, trained by the benchmark on the documentation inside
  PyTorch and Python, with a tokenizer of its own. Accuracy is measured on held-out text.
- **Drawn**: a Llama with the shape of SmolLM-135M, {drawn_mb:.0f} MB, with random weights: for
  sizes and times alone.

`cpu-int4` searches for the fewest bytes within the budgets; `int4-direct` rounds each weight once
to the nearest code of 4 bits, without a search. The weights of llama.cpp's files are rounded by
ggml's own code, and their accuracy is that of the weights in the float model's graph: llama.cpp
also rounds activations. Bytes are those of graph and weights. An empty cell or a missing row was
not measured in this run.

## Size and accuracy

{sizes}

## Pace

A prompt of 128 tokens and 64 tokens after it. *First* is the processor time to the first token,
*tokens* those after the first, per second of processor time. *Relative* is the processor time of
these tokens next to `edgepack fp32` in the same round. *MB* is the most memory of the process.

{paces}

## Builds

Processor time of the tool and its children, and most memory of its largest process, pages of files
included.

{builds}

## Budgets of texts

The limits of a build, a perplexity of 1.01 times the float model's and a divergence of .005 nats,
against tasks with one right answer: three small models that the limits were not chosen on, each
with 72 roundings (2 to 8 bits, blocks of 16 to 128, a quarter, half or all of the matrices), on
4,000 prompts.

{limits}

## Parts of a prompt

A long prompt runs in parts of at most `MOST_STEPS` tokens. Processor time of a prompt, one thread;
*relative* to parts of 128 tokens:

{parts}
"""

_SIZES = ("MB", "perplexity", "divergence, nats", "same token")


class ModelNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of a model.

    Attributes:
        kind: "trained" or "drawn".
        float_bytes: Bytes of its float weights.
        built: Costs and sizes by tool.
        quality: Accuracy by tool; of the trained model.
        paces: By number of threads, pace by tool.
    """

    kind: str
    float_bytes: int
    built: dict[str, Built]
    quality: dict[str, Quality]
    paces: dict[str, dict[str, Pace]]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers.

    Attributes:
        models: Trained and drawn.
        answers: Roundings of models with right answers.
        parts: Times of prompts in parts.
        versions: Of the other tools.
    """

    models: list[ModelNumbers]
    answers: list[Rounded]
    parts: list[PartTime]
    versions: str


def write_page(measured: Measured, folder: Path | None) -> str:
    """Return the page; write page and JSON if a folder is given."""
    trained, drawn = measured.models
    host = read_host()
    page = PAGE.format(
        machine=f"{host.cpu}, {os.cpu_count()} cores, {', '.join(host.flags)}",
        versions=measured.versions,
        trained_mb=trained.float_bytes / 1e6,
        drawn_mb=drawn.float_bytes / 1e6,
        sizes=_sizes(trained, drawn),
        paces="\n\n".join(map(_paces, measured.models)),
        builds=_builds(trained, drawn),
        limits=_table(
            [
                "model",
                "limits",
                "within",
                "worst loss of right answers",
                "lose more than 1 %",
                "beyond, and lose 1 % at most",
            ],
            limit_rows(measured.answers),
        ),
        parts=_parts(measured.parts),
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(page)
        numbers = msgspec.json.format(msgspec.json.encode(measured))
        (folder / "generative.json").write_bytes(numbers + b"\n")
    return page


def _sizes(trained: ModelNumbers, drawn: ModelNumbers) -> str:
    def row(name: str) -> list[str]:
        quality, one, other = (
            trained.quality.get(name),
            trained.built.get(name),
            drawn.built.get(name),
        )
        found = ["", "", ""]
        if quality:
            found = [
                f"{quality.perplexity:.3f}",
                f"{max(quality.divergence, 0):.5f}",
                f"{quality.agreement:.3f}",
            ]
        return [name, _mb(one), *found, _mb(other)]

    names = ["tool", "trained, MB", *_SIZES[1:], "drawn, MB"]
    return _table(names, [row(name) for name in CONTESTANTS])


def _mb(built: Built | None) -> str:
    if built is None:
        return ""
    return f"failed: {built.note[:60]}" if built.note else f"{built.model_bytes / 1e6:.3f}"


def _paces(model: ModelNumbers) -> str:
    names = ["tool", "first, ms", "tokens", "relative"]
    names += ["first, 2 threads", "tokens, 2 threads", "MB"]
    rows = []
    for name in CONTESTANTS:
        one, two = (model.paces[threads].get(name) for threads in ("1", "2"))
        if one and two:
            rows.append(
                [
                    name,
                    f"{one.first_cpu_ms:.1f}",
                    f"{one.tokens_per_cpu_s:.0f}",
                    f"{one.relative:.3f}",
                    f"{two.first_cpu_ms:.1f}",
                    f"{two.tokens_per_cpu_s:.0f}",
                    f"{one.peak_bytes / 1e6:.0f}",
                ]
            )
    return f"The {model.kind} model:\n\n" + _table(names, rows)


def _builds(trained: ModelNumbers, drawn: ModelNumbers) -> str:
    def costs(built: Built | None) -> list[str]:
        if built is None or built.note:
            return ["", ""]
        return [f"{built.cpu_s:.1f}", f"{built.peak_bytes / 1e6:.0f}"]

    rows = [
        [name, *costs(trained.built.get(name)), *costs(drawn.built.get(name))]
        for name in CONTESTANTS
    ]
    return _table(["tool", "trained, s", "MB", "drawn, s", "MB"], rows)


def _parts(parts: Sequence[PartTime]) -> str:
    return _table(
        ["model", "prompt", "tokens of a part", "processor, ms", "relative"],
        [
            [one.model, str(one.prompt), str(one.steps), f"{one.cpu_ms:.0f}", f"{one.relative:.2f}"]
            for one in parts
        ],
    )


def _table(names: list[str], rows: Iterable[list[str]]) -> str:
    lines = [names, ["---", *["---:"] * (len(names) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
