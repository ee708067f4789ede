"""Recognition of states: inputs that an output of the previous inference feeds.

A speech detector or a streaming recognizer returns its state to itself, and errors too small to see
in a single inference add up. ONNX does not define the pairs of outputs and inputs. Names, shapes
and types propose pairs (`state` and `stateN`, `h0` and `hn`, `past` and `present`), a run of the
float model confirms the pairs, and `[inputs.NAME] from = "OUTPUT"` in `edgepack.toml` settles open
names; with `from = ""` an input is never a state.

Sound or video is usually saved without the state of the later model: the state input is zero in
every file. Ranges taken from that would not cover a state that has heard something. So the float
model runs once through all samples in file order, and each sample gets the state at its place.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import InputDeclaration, RawInput, series_steps
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import open_as_given
from edgepack.packager.tensors.sequence import Feeds, Samples, State
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key, unknown_name
from edgepack.tasks.arrays import Tensor

_BEFORE = frozenset({"in", "input", "past", "prev", "previous", "init", "initial", "old", "0", "i"})
_AFTER = frozenset(
    {"out", "output", "present", "next", "new", "final", "updated", "n", "o", "cur", "current"}
)
"""Words that tell a state before an inference from the same state after it."""

_PAST = frozenset({"past", "prev", "previous", "old"})
_PRESENT = frozenset({"present", "next", "new", "updated", "cur", "current"})
"""Those that speak of time by themselves; `input` and `output` are of every model."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SHORT_STATE = re.compile(r"(?P<letter>[hcs])(?P<time>[0n])")
"""`h0` and `hn`, `c0` and `cn`: as PyTorch's recurrent layers name them."""

_FOLLOWED = 16
"""Pairs of successive samples that show whether an output feeds an input."""

_EQUAL = 1e-3
"""Greatest difference of equal states, as a share of the states' spread."""


class FoundStates(msgspec.Struct, frozen=True, kw_only=True):
    """States found in a model.

    Attributes:
        states: Inputs that are fed from outputs, in the order of the inputs.
        notes: Notes on the states for a person, a sentence each.
    """

    states: tuple[State, ...] = ()
    notes: tuple[str, ...] = ()


def find_states(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    declarations: Mapping[str, InputDeclaration],
    fits: Callable[[TensorSpec, TensorSpec], bool] | None = None,
) -> FoundStates:
    """Return pairs of inputs with the outputs that feed these inputs.

    Declarations hold. Among the others, an input and an output of equal type and shape with names
    that differ only in before and after are a pair, as long as each has no other partner, and some
    input is left that is not a state.

    Args:
        inputs, outputs: The model's.
        declarations: Declared inputs by name.
        fits: Whether type and shape let an output feed an input; by default both are the same.

    Raises:
        BuildError: A declared output does not exist, or has another type or shape.
    """
    fits = fits or _fits
    declared = tuple(
        State(input=spec.name, output=_declared_output(spec, declaration, outputs, fits))
        for spec in inputs
        if isinstance(declaration := declarations.get(spec.name), RawInput) and declaration.fed_from
    )
    taken = {state.output for state in declared}
    open_inputs = [spec for spec in inputs if _is_open(declarations.get(spec.name))]
    partners = {
        spec.name: [
            output.name
            for output in outputs
            if output.name not in taken and fits(spec, output) and _is_pair(spec.name, output.name)
        ]
        for spec in open_inputs
    }
    wanted = [name for names in partners.values() for name in names]
    found = tuple(
        State(input=name, output=names[0])
        for name, names in partners.items()
        if len(names) == 1 and wanted.count(names[0]) == 1
    )
    paired = {state.input for state in found}
    unclear = [name for name, names in partners.items() if names and name not in paired]
    order = [spec.name for spec in inputs]
    states = tuple(sorted((*declared, *found), key=lambda state: order.index(state.input)))
    if len(states) == len(inputs) and not declared:
        return FoundStates()  # nothing would be left to tell one inference from the next
    notes = [
        f"Input '{state.input}' is fed from output '{state.output}' of the inference before "
        f"({'declared' if state in declared else 'by name and shape'})."
        for state in states
    ]
    notes += [
        f"Input '{name}' may be a state ({' or '.join(map(repr, partners[name]))} could feed it): "
        f'[inputs.{toml_key(name)}] kind = "raw", from = "OUTPUT" in edgepack.toml would settle it.'
        for name in unclear
    ]
    return FoundStates(states=states, notes=tuple(notes))


def confirm_states(found: FoundStates, run: Run, feeds: Feeds) -> FoundStates:
    """Keep the states if the float model really accepts its own outputs.

    Args:
        found: Proposals from names and shapes.
        run: The float model.
        feeds: A sample.

    Returns:
        The same, or no states and the reason.
    """
    if not found.states:
        return found
    first = run(feeds)
    for state in found.states:
        reason = _misfit(first, state, feeds)
        if reason:
            return FoundStates(
                notes=(
                    f"Input '{state.input}' is not fed from output '{state.output}', although its "
                    f"name says so: {reason}.",
                )
            )
    return found


def _is_open(declaration: InputDeclaration | None) -> bool:
    """Return True if names may decide: nothing else is declared."""
    if isinstance(declaration, RawInput):
        return declaration.fed_from is None
    return declaration is None


def _misfit(outputs: Feeds, state: State, feeds: Feeds) -> str:
    before, after = feeds[state.input], outputs[state.output]
    if before.shape != after.shape:
        return f"the sample has shape {list(before.shape)}, the output {list(after.shape)}"
    if before.dtype != after.dtype:
        return f"the sample is {before.dtype.name}, the output {after.dtype.name}"
    if after.dtype.kind == "f" and not np.isfinite(after).all():
        return "the output is not finite"
    return ""


def _declared_output(
    spec: TensorSpec,
    declaration: RawInput,
    outputs: Sequence[TensorSpec],
    fits: Callable[[TensorSpec, TensorSpec], bool],
) -> str:
    where = f"inputs.{spec.name}.from"
    by_name = {output.name: output for output in outputs}
    wanted = declaration.fed_from or ""
    output = by_name.get(wanted)
    if output is None:
        raise unknown_name("output", wanted, by_name, where, lambda near: f'from = "{near}"')
    if not fits(spec, output):
        raise BuildError(
            f"output {output} cannot be fed to input {spec}",
            found_in=where,
            remedy="name the output that holds the state after the inference",
        )
    return output.name


def _fits(spec: TensorSpec, output: TensorSpec) -> bool:
    """Return True for equal types, without different fixed sizes."""
    return _differing_sizes(spec, output) == []


def may_grow(spec: TensorSpec, output: TensorSpec) -> bool:
    """Return True for equal types and ranks, with at most a single fixed size that is larger in the
    output.
    """
    differ = _differing_sizes(spec, output)
    return differ is not None and len(differ) < 2 and all(mine < other for mine, other in differ)


def _differing_sizes(spec: TensorSpec, output: TensorSpec) -> list[tuple[int, int]] | None:
    """Return both sizes of each fixed and different dimension; None for different types or
    ranks.
    """
    if spec.dtype != output.dtype or len(spec.shape) != len(output.shape):
        return None
    return [
        (mine, other)
        for mine, other in zip(spec.shape, output.shape, strict=True)
        if isinstance(mine, int) and isinstance(other, int) and mine != other
    ]


def _is_pair(before: str, after: str) -> bool:
    """Return True if two names are equal except for a word that means before, or a word that means
    after.
    """
    first, second = _words(before), _words(after)
    if first == second:
        return False
    if first[0] in _PAST and second[0] in _PRESENT and first[1:] == second[1:]:
        return True  # nothing else is in the name of the only one
    stems = {first, *_without(first, _BEFORE)}
    return any(stem and stem in stems for stem in (second, *_without(second, _AFTER)))


def _without(words: tuple[str, ...], markers: frozenset[str]) -> list[tuple[str, ...]]:
    return [words[:i] + words[i + 1 :] for i, word in enumerate(words) if word in markers]


def _words(name: str) -> tuple[str, ...]:
    short = _SHORT_STATE.fullmatch(name.lower())
    if short:
        return short["letter"], short["time"]
    return tuple(word.lower() for word in _WORD.findall(name.replace("past_key_values", "past")))


def follow_states(
    opened: OpenedSamples,
    source: SourceModel,
    declarations: Mapping[str, InputDeclaration],
    *,
    folder: Path,
    progress: Progress,
) -> OpenedSamples:
    """Find out which inputs are states, and give each sample its own.

    Args:
        opened: The samples.
        source: The model of the samples.
        declarations: Declared inputs by name.
        folder: Where states are kept.
        progress: Called for each inference.

    Returns:
        The samples with their states, and notes on both; unchanged for a model without states.

    Raises:
        BuildError: A declared state does not fit the model, or samples are no whole series.
    """
    found = find_states(source.inputs, source.outputs, declarations)
    pairs = _unnamed_pairs(source, declarations, found)
    run = open_as_given(source) if found.states or pairs else None
    if run is not None and pairs:
        found = _add_followed(found, opened.samples, pairs, run)
    steps = series_steps(declarations)
    _check_series(opened.samples, found, steps, pairs)
    doubt = _doubt_constant(opened.samples, pairs, found, run) if run is not None else ""
    samples = replace(opened.samples, doubt=doubt)
    if run is None or not found.states:
        return replace(opened, samples=samples, notes=(*opened.notes, *found.notes))
    found = confirm_states(found, run, samples.read(0))
    series = replace(samples, steps=steps)
    samples, notes = carry_states(series, found.states, run, folder, progress)
    return replace(opened, samples=samples, notes=(*opened.notes, *found.notes, *notes))


def possible_states(source: SourceModel) -> dict[str, list[str]]:
    """Return inputs that may be states, each with the outputs of its shape that may feed it.

    Names decide where they show a pair. A cache that grows has another shape after an inference.
    """
    found = find_states(source.inputs, source.outputs, {})
    shapes = {spec.name: spec.shape for spec in (*source.inputs, *source.outputs)}
    possible: dict[str, list[str]] = {}
    for pair in (*found.states, *_unnamed_pairs(source, {}, found)):
        if shapes[pair.input] == shapes[pair.output]:
            possible.setdefault(pair.input, []).append(pair.output)
    return possible


def _unnamed_pairs(
    source: SourceModel, declarations: Mapping[str, InputDeclaration], found: FoundStates
) -> tuple[State, ...]:
    """Return pairs of floats of equal shape that neither names nor declarations settle."""
    fed = {state.input: state.output for state in found.states}
    if len(source.inputs) < 2:
        return ()  # nothing would be left to tell one inference from the next
    return tuple(
        State(input=spec.name, output=output.name)
        for spec in source.inputs
        for output in source.outputs
        if spec.dtype.startswith("float")
        and _is_open(declarations.get(spec.name))
        and spec.name not in fed
        and output.name not in fed.values()
        and _fits(spec, output)
    )


def _add_followed(
    found: FoundStates, samples: Samples, pairs: tuple[State, ...], run: Run
) -> FoundStates:
    """Add the pairs whose output is the next sample's input, in the order of the samples."""
    followed = tuple(pair for pair in pairs if _is_followed(samples, pair, run))
    inputs, outputs = ([getattr(pair, end) for pair in followed] for end in ("input", "output"))
    clear = tuple(
        pair
        for pair in followed
        if inputs.count(pair.input) == 1 and outputs.count(pair.output) == 1
    )
    notes = (
        f"Input '{pair.input}' is fed from output '{pair.output}' of the inference before "
        "(the samples show that)."
        for pair in clear
    )
    states = (*found.states, *clear)
    if len(states) == len(samples.read(0)):
        return found
    return FoundStates(states=states, notes=(*found.notes, *notes))


def _is_followed(samples: Samples, pair: State, run: Run) -> bool:
    """Return True if most of the first samples hold the previous sample's output."""
    feeds = [samples.read(index) for index in range(min(samples.count, _FOLLOWED + 1))]
    given = [one[pair.input].astype(np.float64) for one in feeds]
    if len(feeds) <= _FOLLOWED // 2 or all(np.array_equal(given[0], one) for one in given):
        return False
    made = [run(one)[pair.output].astype(np.float64) for one in feeds[:-1]]
    follow = list(zip(made, given[1:], strict=True))
    if any(before.shape != after.shape for before, after in follow):
        return False
    near = _EQUAL * float(np.std(np.stack(given)))
    equal = [bool(np.abs(before - after).max(initial=0.0) <= near) for before, after in follow]
    return 2 * sum(equal) > len(equal)


def _doubt_constant(
    samples: Samples, pairs: tuple[State, ...], found: FoundStates, run: Run
) -> str:
    """Return why the samples may lack a state: an input is always the same, and an output fits."""
    fed = {state.input for state in found.states}
    first = samples.read(0)
    made = run(first) if pairs else {}
    for name in dict.fromkeys(pair.input for pair in pairs if pair.input not in fed):
        fit = [
            f"'{pair.output}'"
            for pair in pairs
            if pair.input == name and made[pair.output].shape == first[name].shape
        ]
        if not fit or samples.count < 2 or not _is_one_value(samples, name):
            continue
        names = " or ".join(fit)
        return (
            f"input '{name}' is the same in all {samples.count} samples and may be a state, since "
            f"{names} has its shape: later inferences were not evaluated. To settle it: "
            f"[inputs.{toml_key(name)}] kind = 'raw' and from = {names} in edgepack.toml, or "
            "from = '' if no output feeds it"
        )
    return ""


def _check_series(
    samples: Samples, found: FoundStates, steps: int, pairs: tuple[State, ...]
) -> None:
    if not steps:
        return
    if not found.states:
        output = pairs[0].output if pairs else "OUTPUT"
        raise BuildError(
            f"steps = {steps} is declared, and the model has no state",
            found_in="inputs",
            remedy=f'from = "{output}" in the section of the input that an output feeds',
        )
    if samples.count % steps:
        raise BuildError(
            f"{samples.count} samples are no whole series of {steps} inferences each",
            found_in=samples.source,
            remedy="save series of equal length, one after the other, or leave steps out",
        )


def carry_states(
    samples: Samples,
    states: tuple[State, ...],
    run: Run,
    folder: Path,
    progress: Progress,
) -> tuple[Samples, tuple[str, ...]]:
    """Return the samples with states, each its own.

    Args:
        samples: In file order, which is taken for the order of time.
        states: Inputs that are fed from outputs.
        run: The float model.
        folder: Where states are kept: on disk, since a cache may be large.
        progress: Called for each inference.

    Returns:
        The samples, and notes on the changes. A state that differs from sample to sample in the
        files is left unchanged.
    """
    known = replace(samples, states=states)
    given = [state for state in states if _is_one_value(samples, state.input)]
    if not given or samples.count < 2:
        return known, ()
    folder.mkdir(parents=True, exist_ok=True)
    first = samples.read(0)
    kept = {
        state.input: np.lib.format.open_memmap(
            folder / f"{number}.npy",
            mode="w+",
            dtype=first[state.input].dtype,
            shape=(samples.count, *first[state.input].shape),
        )
        for number, state in enumerate(given)
    }
    carried = {state.input: first[state.input] for state in given}
    fresh = carried
    for index, feeds in enumerate(samples):
        if samples.steps and index % samples.steps == 0:
            carried = fresh
        for name, value in carried.items():
            kept[name][index] = value
        outputs = run({**feeds, **carried})
        carried = {state.input: outputs[state.output] for state in given}
        progress(BuildStep(what="carrying states", done=index + 1, total=samples.count))

    def read(index: int) -> Feeds:
        own: dict[str, Tensor] = {name: np.array(values[index]) for name, values in kept.items()}
        return {**samples.read(index), **own}

    names = ", ".join(f"'{state.input}'" for state in given)
    them = f"each series of {samples.steps}" if samples.steps else "them"
    note = (
        f"All {samples.count} samples hold the same {names}: each got what the float model had "
        f"there, run through {them} in file order."
    )
    return replace(known, read=read), (note,)


def _is_one_value(samples: Samples, name: str) -> bool:
    first = samples.read(0)[name]
    return all(np.array_equal(first, feeds[name]) for feeds in samples)
