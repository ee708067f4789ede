"""Numbers of the benchmark, as a page and as JSON."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgepack.agent.runtime.facts import describe_device
from edgepack.errors import DeviceError

_NO_RUNTIME = DeviceError("not looked for")

PAGE = """\
# Calls, measured

What a call of a model costs: in bare ONNX Runtime, in process (`open_model`), by a bound call
(`model.bind`), and through the [model server](../../how-to/endpoint.md) (*door*, by
`open_model(name, via="server")`; *grpc*, by Triton's client). Made by `make bench-serve` in one run
on {machine}; [the numbers](serve.json) as JSON. Models run with one thread. Clients are processes
that call back to back. Compare the numbers within a table only: the machine is shared.

## One client

{one}

## Four clients

{four}

## An input of 10 MB

The model reads four values. *Copy* copies the input once, in memory. *Sealed* is `bind` of a model
in the server, whose input is written in place. *Region* leaves the input in named shared memory;
*copied* writes the input there before each call.

{large}

## Next to other servers

The same models and the same client (Triton's, by loopback) in the same run: {versions}. Models run
in bare ONNX Runtime there. *json* and *binary* are forms of REST; a missing row is a form that the
server does not accept from this client. OpenVINO Model Server has no package on PyPI or in Debian,
so it was not raced. KServe's own clients (REST in both forms, gRPC) with edgepack's server:
{kserve_client}.

{raced}

## Swaps

{swaps} swaps of a model of 0.05 ms under {clients} clients of the server, threads of one process:
**{failed} of {calls} calls failed**. The median call took {median_ms:.2f} ms, the longest
{longest_ms:.0f} ms. In a second without swaps the median was {calm_median_ms:.2f} ms, the longest
call {calm_longest_ms:.0f} ms.

## Memory

Three models in each process, and pages that processes share divided among them.

| | MB |
| --- | ---: |
| one process, models in process | {one_mb:.0f} |
| four processes, models in process | {four_mb:.0f} |
| four processes, clients of the server | {clients_mb:.0f} |
| the server | {server_mb:.0f} |
"""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of a model in one way.

    Attributes:
        model, way, clients: Model, way, and processes that call at the same time.
        calls: Measured calls.
        median_ms, p99_ms: Duration of a call.
        cpu_ms: Processor time of a call: of the client, and of the server.
    """

    model: str
    way: str
    clients: int
    calls: int
    median_ms: float
    p99_ms: float
    cpu_ms: float


class Swaps(msgspec.Struct, frozen=True, kw_only=True):
    """Calls during swaps, and in a calm second before."""

    swaps: int
    clients: int
    calls: int
    failed: int
    calm_median_ms: float
    calm_longest_ms: float
    median_ms: float
    longest_ms: float


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory, MB; shared pages are divided among their users."""

    one_mb: float
    four_mb: float
    clients_mb: float
    server_mb: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All numbers.

    Attributes:
        cells: Calls of our own server and in process.
        race, versions: Calls of other servers next to ours, and versions by server.
        kserve_client: "conforms", or why KServe's own client does not work with our server.
        swaps, memory: See their classes.
    """

    cells: tuple[Cell, ...]
    race: tuple[Cell, ...]
    versions: dict[str, str]
    kserve_client: str
    swaps: Swaps
    memory: Memory


def write_page(measured: Measured, folder: Path | None) -> str:
    """Return the page; write page and JSON if a folder is given."""
    small = [cell for cell in measured.cells if not cell.model.startswith("mb")]
    large = [cell for cell in measured.cells if cell.model.startswith("mb")]
    page = PAGE.format(
        machine=f"{describe_device(_NO_RUNTIME).cpu_model}, {os.cpu_count()} cores",
        one=_table([cell for cell in small if cell.clients == 1]),
        four=_table([cell for cell in small if cell.clients > 1]),
        large=_table(large, clients=True),
        raced=_table([*measured.race], bare=[cell for cell in small if cell.clients == 1]),
        kserve_client=measured.kserve_client,
        versions="; ".join(filter(None, measured.versions.values())),
        **msgspec.structs.asdict(measured.swaps),
        **msgspec.structs.asdict(measured.memory),
    )
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(page)
        numbers = msgspec.json.format(msgspec.json.encode(measured))
        (folder / "serve.json").write_bytes(numbers + b"\n")
    return page


def _table(cells: list[Cell], *, clients: bool = False, bare: Sequence[Cell] = ()) -> str:
    own = {(cell.model, cell.clients): cell for cell in (*bare, *cells) if cell.way == "bare"}
    first = ["clients"] if clients else ["model"]
    names = [*first, "way", "median, ms", "more than bare, ms", "p99, ms", "processor, ms"]
    rows = [names, ["---", "---", *["---:"] * 4]]
    for cell in cells:
        more = cell.median_ms - own[cell.model, cell.clients].median_ms
        rows.append(
            [
                str(cell.clients) if clients else cell.model.removeprefix("ms-") + " ms",
                cell.way,
                f"{cell.median_ms:.4f}",
                "" if cell.way == "bare" else f"{more:+.4f}",
                f"{cell.p99_ms:.3f}",
                f"{cell.cpu_ms:.4f}",
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
