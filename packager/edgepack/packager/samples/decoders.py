"""Recognition of decoders: their inputs and outputs, and the rule of each input.

A decoder takes tokens and gives scores of the next token; in addition a cache grows with each step,
or a state is carried. Caches are recognized like states (`recurrence`), but for the axis that
grows, which a run of the float model shows. Tokens index rows of a table that is as long as a row
of scores; `[outputs.NAME] task = "tokens"` settles the facts that graph and names leave open. The
rules of the other inputs follow from their names, sizes and values, and a second step of the float
model confirms the rules.

Decoders without a cache: each step reads the whole text again.

Such decoders look like models that fill gaps, which also score words after a text of any length;
but a gap model's scores at a place depend on the following text.

Rules for a decoder's other inputs from step to step, by names, sizes and values.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from edgepack.errors import BuildError, DeviceError
from edgepack.packager.config.inputs import InputDeclaration
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.samples.files import OpenedSamples
from edgepack.packager.samples.recurrence import find_states, may_grow
from edgepack.packager.samples.token_steps import next_feeds, next_scores, without_padding_behind
from edgepack.packager.source.lookups import KEEPS_SOME_VALUES, find_lookups
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.reference import open_as_given
from edgepack.packager.tensors.decoders import Cache, Decoder, Rule
from edgepack.packager.tensors.sequence import Feeds, State
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs, Tensor
from edgepack.text import counted

_NOTHING_BACK = "no input takes back what an output gives"


class _View(msgspec.Struct, frozen=True, kw_only=True):
    """A first step of the float model.

    Attributes:
        inputs, outputs: The model's, by name.
        feeds, said: A sample, and the model's outputs.
        caches: Caches carried between steps.
        tables: By input, its number of possible rows.
        rereading: Where nothing is carried, tokens and scores of a text that is read as a whole.
        declared: The outputs that are declared to score tokens.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    feeds: Feeds
    said: Outputs
    caches: tuple[Cache, ...]
    tables: Mapping[str, int]
    rereading: tuple[tuple[str, str], ...]
    declared: Mapping[str, OutputDeclaration]

    @property
    def past(self) -> int | None:
        """Places that the caches held before the step; None where none grows."""
        if self.rereading:
            return 0
        sizes = (self.feeds[c.input].shape[c.axis] for c in self.caches if c.axis >= 0)
        return next(sizes, None)


def follow_tokens(
    opened: OpenedSamples,
    source: SourceModel,
    declarations: Mapping[str, InputDeclaration],
    outputs: Mapping[str, OutputDeclaration],
) -> OpenedSamples:
    """Find out whether a model is a decoder, and the rules of its inputs.

    Args:
        opened: The samples.
        source: The model of the samples.
        declarations, outputs: Declared inputs and outputs by name.

    Returns:
        The samples with their decoder, and notes; unchanged for other models.

    Raises:
        BuildError: Tokens are declared, and the model is not a decoder.
    """
    declared = {name: entry for name, entry in outputs.items() if entry.task == "tokens"}
    pairs = find_states(source.inputs, source.outputs, declarations, fits=may_grow)
    tables = sizes_of_tables(source)
    if not pairs.states and not declared and not find_rereading(source, tables):
        return opened
    run = open_as_given(source)
    feeds = opened.samples.read(0)
    view = _look(source, pairs.states, feeds, run(feeds), declared, tables)
    decoder, doubt = _find(view)
    if decoder is not None:
        doubt = _try_steps(decoder, feeds, run)
    if decoder is not None and not doubt:
        decoder = replace(decoder, end=source.texts.end if source.texts else None)
        samples = replace(opened.samples, decoder=decoder)
        note = _describe(decoder, view, are_texts=samples.are_texts)
        return replace(opened, samples=samples, notes=(*opened.notes, note))
    if declared:
        name, why = next(iter(declared)), doubt or _NOTHING_BACK
        if not view.caches:
            note = (
                f"Output '{name}' scores tokens, and {why}: compared are the tokens after each of "
                "the given ones, and no chain is followed."
            )
            return replace(opened, notes=(*opened.notes, note))
        raise BuildError(
            f"output {name!r} is declared to score tokens, and {why}",
            found_in=f"outputs.{toml_key(name)}",
            remedy='tokens = "INPUT" names the input that takes them, [inputs.NAME] kind = "raw", '
            'from = "OUTPUT" each cache',
        )
    if not view.caches or view.past is None or not doubt:
        return opened
    return replace(opened, notes=(*opened.notes, _ask(view, doubt)))


def _look(
    source: SourceModel,
    pairs: Sequence[State],
    feeds: Feeds,
    said: Outputs,
    declared: Mapping[str, OutputDeclaration],
    tables: Mapping[str, int],
) -> _View:
    inputs = {spec.name: spec for spec in source.inputs}
    caches = (
        _cache(state, inputs[state.input], feeds[state.input], said[state.output])
        for state in pairs
    )
    return _View(
        inputs=inputs,
        outputs={spec.name: spec for spec in source.outputs},
        feeds=feeds,
        said=said,
        caches=tuple(cache for cache in caches if cache is not None),
        tables=tables,
        rereading=() if pairs else find_rereading(source, tables),
        declared=declared,
    )


def _cache(state: State, spec: TensorSpec, before: Tensor, after: Tensor) -> Cache | None:
    """Return the cache of a pair of tensors, by their values; None if the values do not fit."""
    if before.ndim != after.ndim or before.dtype != after.dtype:
        return None
    axes = [axis for axis in range(before.ndim) if before.shape[axis] != after.shape[axis]]
    if not axes:
        return Cache(input=state.input, output=state.output)
    if len(axes) > 1 or after.shape[axes[0]] < before.shape[axes[0]]:
        return None
    size = spec.shape[axes[0]]
    places = size if isinstance(size, int) else None
    return Cache(input=state.input, output=state.output, axis=axes[0], places=places)


def _find(view: _View) -> tuple[Decoder | None, str]:
    """Return the decoder, or why there is none."""
    carried = {cache.input for cache in view.caches}
    fed_back = {cache.output for cache in view.caches}
    if not view.caches and not view.rereading:
        return None, ""
    tokens = [name for name in view.inputs if name not in carried and _may_be_tokens(view, name)]
    scores = [
        name
        for name, value in view.said.items()
        if name not in fed_back
        and value.dtype.kind == "f"
        and value.ndim in (2, 3)
        and value.shape[-1] > 1
        and value.shape[0] == 1
    ]
    found = _choose(view, tokens, scores)
    if view.rereading and found not in view.rereading:
        return None, _NOTHING_BACK
    if found is None:
        if view.past is None and not view.declared:
            return None, ""
        return None, (
            "nothing tells which input takes tokens"
            if not tokens or any(entry.tokens not in tokens for entry in view.declared.values())
            else "nothing tells which output scores the next token"
        )
    ids, told = found
    size = view.inputs[ids].shape[-1]
    if isinstance(size, int) and size > 1:
        return None, f"input '{ids}' takes {size} tokens at once, and no step of one"
    rules = {
        name: _rule(view, name, ids) for name in view.inputs if name not in carried and name != ids
    }
    return Decoder(
        tokens=ids,
        scores=told,
        caches=view.caches,
        rules=rules,
        rows={
            name: view.tables[name]
            for name, rule in rules.items()
            if rule == "positions" and name in view.tables
        },
    ), ""


def _may_be_tokens(view: _View, name: str) -> bool:
    value = view.feeds[name]
    is_row = value.ndim in (1, 2) and value.size == value.shape[-1] > 0
    return is_row and value.dtype.kind in "iu"


def _choose(view: _View, tokens: list[str], scores: list[str]) -> tuple[str, str] | None:
    """Return tokens and scores: declared; else by a table's length; else, with a cache, by
    names.
    """
    for name, entry in view.declared.items():
        named = [entry.tokens] if entry.tokens else _named(tokens, _TOKENS)
        return (named[0], name) if len(named) == 1 and named[0] in tokens else None
    fitting = [
        (ids, told)
        for ids in tokens
        for told in scores
        if view.tables.get(ids) == view.said[told].shape[-1]
        and (not view.rereading or (ids, told) in view.rereading)
    ]
    if len(fitting) == 1:
        return fitting[0]
    if view.rereading:
        return None
    ids, told = _named(tokens, _TOKENS), _named(scores, _SCORES)
    if view.past is None or len(ids) != 1 or len(told) != 1:
        return None
    return ids[0], told[0]


_TOKENS = re.compile(r"(?!.*(pos|type|mask|len)).*(id|tok|target)", re.IGNORECASE)
_SCORES = re.compile(r".*(logit|score|prob)", re.IGNORECASE)


def _named(names: list[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the only name; of several the names that fit the pattern."""
    return names if len(names) == 1 else [name for name in names if pattern.match(name)]


def _rule(view: _View, name: str, tokens: str) -> Rule:
    spec = view.inputs[name]
    seen = FedInput(
        name=name,
        value=view.feeds[name],
        step=view.feeds[tokens].shape[-1],
        past=view.past,
        is_of_tokens=spec.shape[-1:] == view.inputs[tokens].shape[-1:],
        can_grow=bool(view.caches) or _is_open(spec, view.tables),
    )
    return rule_of(seen)


def _is_open(spec: TensorSpec, tables: Mapping[str, int]) -> bool:
    """Return whether a longer text may lengthen an input: its size is open, and it is no source."""
    return bool(spec.shape) and not isinstance(spec.shape[-1], int) and spec.name not in tables


def _try_steps(decoder: Decoder, feeds: Feeds, run: Run) -> str:
    """Return why a decoder cannot be fed by its rules; "" if two further steps confirm them."""
    try:
        feeds = without_padding_behind(decoder, feeds)
        if not decoder.caches and not reads_forwards(decoder, feeds, run):
            return "what is scored depends on what follows"
        for _ in range(2):
            outputs = run(feeds)
            feeds = next_feeds(decoder, feeds, outputs, int(next_scores(decoder, outputs).argmax()))
        outputs = run(feeds)
    except DeviceError as error:
        return f"a step after the first does not run ({error.problem})"
    except ValueError as error:
        return f"a step after the first does not fit the inputs ({error})"
    return "" if np.isfinite(outputs[decoder.scores]).all() else "a step gives no finite scores"


def _describe(decoder: Decoder, view: _View, *, are_texts: bool) -> str:
    count = len(decoder.caches)
    recognized = (
        f"A decoder: '{decoder.tokens}' takes tokens, '{decoder.scores}' scores the next one, and "
        f"{counted(count, 'cache')} ('{decoder.caches[0].input}'{' …' if count > 1 else ''}) go "
        "from step to step."
        if count
        else f"A decoder: '{decoder.tokens}' takes a text, '{decoder.scores}' scores the token "
        "after it, and no cache goes from step to step."
    )
    if are_texts:
        return recognized
    fed = "fed the cache that it made itself" if count else "each of which reads the text again"
    begun = " The samples are single steps, and chains begin with the caches that they hold."
    is_begun = bool(count and view.past) and view.feeds[decoder.tokens].size == 1
    return (
        f"{recognized} A variant is judged on chains of steps, {fed}, by how often it chooses the "
        f"float model's token.{begun if is_begun else ''}"
    )


def _ask(view: _View, doubt: str) -> str:
    """Ask for facts that graph and names do not show."""
    cache = next(entry for entry in view.caches if entry.axis >= 0)
    return (
        f"Input '{cache.input}' is a cache that grows with each step, and {doubt}: each step is "
        "judged by itself, which does not show what errors do that come back. [outputs.NAME] with "
        "task = 'tokens' and tokens = 'INPUT' in edgepack.toml names the scores of the next token "
        "and the input that takes it."
    )


_UNMOVED = 1e-3
"""Greatest change of a score, as a share of their size, that sums in another order leave."""


def sizes_of_tables(source: SourceModel) -> Mapping[str, int]:
    """Return the number of table rows that an input may index, by input."""
    found = find_lookups(source.model.graph, KEEPS_SOME_VALUES)
    return {name: table.rows for name, table in found.items()}


def find_rereading(source: SourceModel, tables: Mapping[str, int]) -> tuple[tuple[str, str], ...]:
    """Return inputs of tokens with outputs that score the next tokens, in texts of any length."""
    return tuple(
        (ids.name, told.name)
        for ids in source.inputs
        for told in source.outputs
        if ids.name in tables
        and len(ids.shape) == 2
        and isinstance(ids.shape[1], str)
        and len(told.shape) == 3
        and told.shape[1] in (ids.shape[1], "?")
        and told.dtype.startswith("float")
    )


def reads_forwards(decoder: Decoder, feeds: Feeds, run: Run) -> bool:
    """Return True if scores do not depend on later tokens, unlike scores of a model that fills
    gaps.
    """
    said = run(feeds)
    longer = run(next_feeds(decoder, feeds, said, int(next_scores(decoder, said).argmax())))
    scored = (outputs[decoder.scores].astype(np.float64) for outputs in (said, longer))
    before, after = next(scored), next(scored)[:, :-1]
    is_long = before.shape == after.shape and before.shape[1] > 1
    return is_long and bool(
        np.abs(before - after).max() <= _UNMOVED * np.sqrt(np.square(before).mean())
    )


class FedInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input for the rules; `step` tokens are fed, behind `past` places.

    `is_of_tokens`: its last axis is the tokens', by its name or size. `can_grow`: a longer text may
    make the last axis longer; a source of fixed length stays as long as it is.
    """

    name: str
    value: Tensor
    step: int
    past: int | None
    is_of_tokens: bool
    can_grow: bool = True

    def has(self, *words: str) -> bool:
        return any(word in self.name.lower() for word in words)

    @property
    def last(self) -> int:
        return self.value.shape[-1] if self.value.ndim else 0

    @property
    def is_whole(self) -> bool:
        return self.value.dtype.kind in "iu"

    @property
    def counts_up(self) -> bool:
        return self.is_whole and self.last > 1 and bool((np.diff(self.value, axis=-1) == 1).all())


def _is_mask(it: FedInput) -> bool:
    is_other = not it.can_grow or it.has("encoder", "cross", "enc_")
    if it.value.ndim < 2 or it.past is None or is_other:
        return False
    is_told = it.past > 0 or it.has("mask") or not it.is_of_tokens
    return it.last == it.past + it.step and is_told and not it.counts_up


_RULES: tuple[tuple[Rule, Callable[[FedInput], bool]], ...] = (
    (
        "cache_flag",
        lambda it: it.value.dtype.kind == "b" and it.value.size == 1 and it.has("cache"),
    ),
    ("mask", _is_mask),
    ("total_length", lambda it: it.is_whole and it.value.size == 1 and it.has("total", "seqlens")),
    ("positions", lambda it: it.counts_up or (it.last == 1 < it.value.ndim and it.has("pos"))),
    (
        "past_length",
        lambda it: (
            it.is_whole
            and it.value.size == 1
            and it.has("past", "offset", "pos", "len", "step", "start", "index")
        ),
    ),
    ("as_long", lambda it: it.is_whole and it.is_of_tokens and it.value.ndim > 1),
)
"""The first that fits is taken; an input that none fits stays the same."""


def rule_of(seen: FedInput) -> Rule:
    """Return the rule of an input."""
    return next((rule for rule, fits in _RULES if fits(seen)), "same")
