"""Decoders with fixed shapes: their source and samples, and the graph for a single token."""

from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace

from edgepack import durable
from edgepack.agent.runtime.fixed_decoder import (
    FixedCache,
    FixedDecoderSession,
    FixedSizes,
    fixed_feeds,
)
from edgepack.agent.runtime.opening import GRAPH_OPTIMIZATION, ON_CPU, open_model_file
from edgepack.bundle.generation import FixedNames as Names
from edgepack.bundle.manifest import FixedDecoder
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.pipeline.open_model import check_shapes
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.pipeline.selection import EvaluationInputs, VariantPlan
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.samples.fixed_texts import fix_texts
from edgepack.packager.samples.golden_selection import MOST_SAMPLES
from edgepack.packager.search.combinations import Combination
from edgepack.packager.source.decoders.fixed import STEP, open_fixed, with_single_step
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Tensor
from edgepack.tasks.tokens.measure import MOST_DIVERGENCE
from edgepack.tasks.tokens.texts import mean_divergence

STEP_CONTEXT = "step"
"""Folder of the compiled graph for one token, beside the other context."""
_COMPARED = 8
"""Tokens that both graphs compute."""


class FixedDecoders:
    """Source and samples of variants; a decoder gets fixed shapes where a profile needs them.

    Args:
        request: The build's request.
        inputs: Source and samples of the other variants.
        work: Folder for the graph and its samples; created where needed.
    """

    def __init__(self, request: BuildRequest, inputs: EvaluationInputs, work: Path) -> None:
        self._request, self._inputs, self._work = request, inputs, work
        self._fixed: EvaluationInputs | None = None

    def inputs_for(self, profile: Profile, progress: Progress) -> EvaluationInputs:
        """Return source and samples for a profile.

        Raises:
            BuildError: The profile needs static shapes, and the model cannot have them.
        """
        source = self._inputs.source
        check_shapes(source, profile, self._request)
        if source.texts is None or not profile.limits.static_shapes:
            return self._inputs
        if self._fixed is None:
            self._fixed = self._fix(progress)
        return self._fixed

    def plan_for(self, plan: VariantPlan) -> VariantPlan:
        """Return a plan with the profile's options for decoders with fixed shapes."""
        if self._inputs.source.texts is None or not plan.profile.limits.static_shapes:
            return plan
        return replace(plan, combinations=tuple(map(_with_options, plan.combinations)))

    def _fix(self, progress: Progress) -> EvaluationInputs:
        inputs = self._inputs
        source, sizes = open_fixed(inputs.source, self._work / "source", progress)
        split = fix_texts(inputs.split, source, sizes, inputs.float_source, self._work / "samples")
        float_source = FloatSource(source, self._work / "source.onnx")
        held_out, scores = split.held_out, Names.logits
        got = held_out.evaluated(0, float_source(held_out.read(0)))[scores][0]
        feeds = inputs.split.held_out.read(0)
        expected = inputs.split.held_out.evaluated(0, inputs.float_source(feeds))[scores][0]
        _check_same(expected[-len(got) :], got, "and with open shapes", str(source.folder))
        return replace(
            inputs,
            source=source,
            split=split,
            provider_samples=split.provider_samples(MOST_SAMPLES),
            float_source=float_source,
            fixed=sizes,
        )


def _with_options(combination: Combination) -> Combination:
    profile = combination.profile
    provider = profile.provider
    options = {**provider.options, **provider.decoder_options}
    return replace(
        combination, profile=replace(profile, provider=replace(provider, options=options))
    )


def add_step(model: Path, inputs: EvaluationInputs, sizes: FixedSizes) -> FixedDecoder:
    """Write the graph for one token next to a variant's model; both share a file of weights.

    Args:
        model: The variant's model, whose weights move to the file.
        inputs: Its samples.
        sizes: Its sizes.

    Raises:
        BuildError: Both graphs differ in what they compute.
    """
    save_model(load_model(model), model, is_shared=True)
    step = onnx.load(model, load_external_data=False)
    with_single_step(step, sizes)
    content = step.SerializeToString(deterministic=True)
    durable.write_file(model.with_name(STEP), content, lasting=False)
    facts = FixedDecoder(step_file=STEP, window=sizes.window)
    settings = replace(ON_CPU, session_options={GRAPH_OPTIMIZATION: "disable_all"})
    many, one = (open_model_file(model.with_name(name), settings) for name in (model.name, STEP))
    session = FixedDecoderSession(many, one, facts)
    tokens = inputs.split.held_out.read(0)[Names.tokens][0, -_COMPARED:].tolist()
    whole, single = FixedCache(session), FixedCache(session)
    expected = whole.feed(tokens)
    got = np.concatenate([single.feed([token]) for token in tokens])
    session.close()
    _check_same(expected, got, "one by one and at once", str(model))
    return facts


def single_feeds(feeds: Feeds, sizes: FixedSizes) -> Feeds:
    """Return the inputs of the last token of a sample, with the same cache."""
    length = int(feeds[Names.positions][0, 0])
    single = fixed_feeds([int(feeds[Names.tokens][0, -1])], length, replace(sizes, steps=1))
    return {**feeds, **single}


def _check_same(expected: Tensor, got: Tensor, words: str, found_in: str) -> None:
    divergence = mean_divergence([expected], [got])
    if not divergence <= MOST_DIVERGENCE:
        raise BuildError(
            f"the graph with fixed shapes computes tokens {words} differently: "
            f"{divergence:.2g} nats, at most {MOST_DIVERGENCE:g}",
            found_in=found_in,
            remedy="build for another profile",
        )
