"""Tasks made together with the code under test, in addition to `examples`."""

from collections.abc import Mapping

import numpy as np

from benchmarks.task_kinds import measures
from benchmarks.task_kinds.examples import draw_pictures
from benchmarks.task_kinds.kind import TaskModel, declare, rows, run_rows
from benchmarks.task_kinds.tape import (
    Array,
    Parameters,
    Tensor,
    concat,
    exp,
    export,
    inputs,
    max_pool,
    mean,
    named,
    relu,
    reshape,
    shares,
    sigmoid,
    square_root,
    tanh,
    train,
    upsample,
)
from benchmarks.tasks.task import Run

_TRAINING, _CALIBRATION, _FRESH = 21, 22, 23


def log_normal_quantity() -> TaskModel:
    """Return a quantity that spans three decades."""
    weights = np.random.default_rng(20).normal(0, 0.45, 12)

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        columns = rng.normal(0, 1, (count, 12))
        logarithm = columns @ weights + 0.3 * columns[:, 0] * columns[:, 1] + 1
        noise = rng.normal(0, 0.03, count)
        return columns.astype(np.float32), (logarithm + noise).astype(np.float32)[:, None]

    parameters = Parameters(20)

    def forward(columns: Array) -> tuple[Tensor, Tensor]:
        x = inputs(columns, "columns")
        hidden = relu(parameters.dense(relu(parameters.dense(x, "first", 48)), "second", 48))
        logarithm = parameters.dense(hidden, "last", 1)
        return logarithm, named(exp(logarithm), "price")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        columns, truth = draw(rng, 128)
        logarithm, _ = forward(columns)
        return {logarithm: (logarithm.value - truth) / 128}

    train(step, parameters, steps=1200, rate=5e-3, seed=_TRAINING)
    fresh, truth = draw(np.random.default_rng(_FRESH), 1500)

    def measure(run: Run) -> float:
        got = run_rows(run, "columns", fresh)["price"]
        error = np.abs(got / np.exp(truth) - 1)
        return float(1 - np.median(error))

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("columns", draw(np.random.default_rng(_CALIBRATION), 150)[0]),
        metric="1 - median relative error",
        measure=measure,
        outputs=declare("price", "values"),
    )


def location_score() -> TaskModel:
    """Return a score for each place, positive at a defect."""
    size = 24
    down, across = np.mgrid[:size, :size]

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        pictures = rng.normal(0, 0.25, (count, 1, size, size))
        truth = np.zeros((count, 1, size, size), bool)
        for picture, where in zip(pictures[:, 0], truth[:, 0], strict=True):
            for _ in range(rng.integers(0, 4)):
                top, left = rng.uniform(2, size - 2, 2)
                spot = (down - top) ** 2 + (across - left) ** 2 < rng.uniform(1.5, 3) ** 2
                picture += spot * rng.uniform(0.6, 1.1) * np.where((down + across) % 2, 1, -1)
                where |= spot
        return pictures.astype(np.float32), truth

    parameters = Parameters(21)
    pictures, labels = draw(np.random.default_rng(_TRAINING), 500)

    def forward(pictures: Array) -> Tensor:
        x = inputs(pictures, "picture")
        hidden = relu(parameters.conv(x, "first", 8))
        hidden = relu(parameters.conv(hidden, "second", 12))
        return named(parameters.conv(hidden, "last", 1), "score")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(labels), 12)
        output = forward(pictures[chosen])
        return {output: (1 / (1 + np.exp(-output.value)) - labels[chosen]).astype(np.float32) / 99}

    train(step, parameters, steps=250, rate=1e-2)
    fresh, truth = draw(np.random.default_rng(_FRESH), 300)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("picture", draw(np.random.default_rng(_CALIBRATION), 80)[0]),
        metric="F1 of places above 0",
        measure=lambda run: measures.f1(truth, run_rows(run, "picture", fresh)["score"] > 0),
        outputs=declare("score", "threshold"),
    )


def depth() -> TaskModel:
    """Return the distance of each place in metres, from shading and haze."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        shapes = draw_pictures(rng, count, 24)
        distance = 1.5 + 25 * shapes**2 * rng.uniform(0.3, 1, (count, 1, 1, 1))
        texture = draw_pictures(rng, count, 24) * 0.2 + 0.7
        haze = np.exp(-distance / 9)
        colors = np.concatenate([texture * haze, haze, 1 - haze * texture], 1)
        noise = rng.normal(0, 0.015, colors.shape)
        return (colors + noise).astype(np.float32), distance.astype(np.float32)

    parameters = Parameters(22)
    pictures, distances = draw(np.random.default_rng(_TRAINING), 300)

    def forward(pictures: Array) -> tuple[Tensor, Tensor]:
        x = inputs(pictures, "picture")
        high = relu(parameters.conv(x, "first", 10))
        low = relu(parameters.conv(max_pool(high), "second", 12))
        joined = relu(parameters.conv(concat([upsample(low), high], 1), "third", 12))
        logarithm = parameters.conv(joined, "last", 1)
        return logarithm, named(exp(logarithm), "depth")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(distances), 8)
        logarithm, _ = forward(pictures[chosen])
        return {logarithm: (logarithm.value - np.log(distances[chosen])) / 1000}

    train(step, parameters, steps=250, rate=1e-2)
    fresh, truth = draw(np.random.default_rng(_FRESH), 200)

    def measure(run: Run) -> float:
        got = run_rows(run, "picture", fresh)["depth"]
        return float(1 - (np.abs(got - truth) / truth).mean())

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("picture", draw(np.random.default_rng(_CALIBRATION), 60)[0]),
        metric="1 - mean relative error",
        measure=measure,
        outputs=declare("depth", "depth"),
    )


def embedding() -> TaskModel:
    """Return a unit vector that is similar for pictures of the same object."""
    size, width, known = 16, 24, 60

    def draw(rng: np.random.Generator, objects: Array, labels: Array) -> Array:
        pictures = objects[labels] * rng.uniform(0.7, 1.3, (len(labels), 1, 1, 1))
        shifts = rng.integers(-1, 2, (len(labels), 2))
        moved = [
            np.roll(picture, tuple(shift), (1, 2))
            for picture, shift in zip(pictures, shifts, strict=True)
        ]
        return (np.stack(moved) + rng.normal(0, 0.12, pictures.shape)).astype(np.float32)

    trained = draw_pictures(np.random.default_rng(_TRAINING), known, size)
    others = draw_pictures(np.random.default_rng(_FRESH), 250, size)
    parameters = Parameters(23)

    def forward(pictures: Array) -> tuple[Tensor, Tensor]:
        hidden = relu(parameters.conv(inputs(pictures, "picture"), "first", 12, 3, 2))
        hidden = relu(parameters.conv(hidden, "second", 24, 3, 2))
        vector = parameters.dense(reshape(hidden, 24 * 16), "vector", width)
        unit = named(vector / square_root(mean(vector * vector, 1) + 1e-6), "vector")
        return parameters.dense(unit, "classes", known), unit

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        labels = rng.integers(0, known, 48)
        logits, _ = forward(draw(rng, trained, labels))
        error = shares(logits.value) - np.eye(known)[labels]
        return {logits: error.astype(np.float32) / 48}

    train(step, parameters, steps=350, rate=5e-3)
    rng = np.random.default_rng(_FRESH)
    each = np.arange(len(others))
    galleries = [draw(rng, others, each) for _ in range(6)]
    probes = draw(rng, others, np.tile(each, 12))

    def measure(run: Run) -> float:
        known = [run_rows(run, "picture", gallery)["vector"] for gallery in galleries]
        asked = run_rows(run, "picture", probes)["vector"]
        found = [(asked @ vectors.T).argmax(1) for vectors in known]
        return float(np.mean([places == np.tile(each, 12) for places in found]))

    rng = np.random.default_rng(_CALIBRATION)
    samples = draw(rng, draw_pictures(rng, 40, size), np.arange(120) % 40)
    return TaskModel(
        model=export([forward(probes[:1])[1]]),
        calibration=rows("picture", samples),
        metric="recall@1 of 250",
        measure=measure,
        outputs=declare("vector", "embedding"),
    )


def sound_separation() -> TaskModel:
    """Return a waveform without its recorded hum and noise."""
    length = 256

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        time = np.arange(length) / length
        clean = np.zeros((count, 1, length))
        for _ in range(3):
            rate = rng.uniform(8, 30, (count, 1, 1))
            start, wide = rng.uniform(0, 1, (count, 1, 1)), rng.uniform(0.05, 0.2, (count, 1, 1))
            envelope = np.exp(-(((time - start) / wide) ** 2))
            clean += envelope * np.sin(2 * np.pi * rate * time + rng.uniform(0, 6, (count, 1, 1)))
        clean *= np.exp(rng.uniform(-3, 0, (count, 1, 1)))
        loudness = np.abs(clean).mean(-1, keepdims=True)
        hum = np.sin(2 * np.pi * 4 * time + rng.uniform(0, 6, (count, 1, 1)))
        noise = rng.normal(0, 0.8, clean.shape) + 1.5 * hum
        return (clean + loudness * noise).astype(np.float32), clean.astype(np.float32)

    parameters = Parameters(24)
    mixed, clean = draw(np.random.default_rng(_TRAINING), 800)

    def forward(mixed: Array) -> Tensor:
        x = inputs(mixed, "mixed")
        hidden = tanh(parameters.conv(x, "first", 16, 17))
        hidden = relu(parameters.conv(hidden, "second", 24, 9, dilation=2))
        return named(parameters.conv(hidden, "last", 1, 9), "clean")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(clean), 16)
        output = forward(mixed[chosen])
        level = np.abs(clean[chosen]).mean(-1, keepdims=True)
        return {output: ((output.value - clean[chosen]) / level / 100).astype(np.float32)}

    train(step, parameters, steps=300, rate=5e-3)
    fresh, truth = draw(np.random.default_rng(_FRESH), 300)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("mixed", draw(np.random.default_rng(_CALIBRATION), 80)[0]),
        metric="SI-SDR, dB",
        measure=lambda run: measures.si_sdr(truth, run_rows(run, "mixed", fresh)["clean"]),
        outputs=declare("clean", "sound"),
    )


def rare_labels() -> TaskModel:
    """Return the probabilities of eight labels, most of these rare, each with its own threshold."""
    generator = np.random.default_rng(25)
    weights = generator.normal(0, 1, (20, 8))
    offsets = np.linspace(-1, -9, 8)

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        columns = rng.normal(0, 1, (count, 20))
        score = 1.2 * columns @ weights + offsets + np.abs(columns[:, :8])
        labels = rng.random((count, 8)) < 1 / (1 + np.exp(-2 * score))
        return columns.astype(np.float32), labels

    parameters = Parameters(25)

    def forward(columns: Array) -> tuple[Tensor, Tensor]:
        hidden = relu(parameters.dense(inputs(columns, "columns"), "first", 64))
        hidden = relu(parameters.dense(hidden, "second", 32))
        logits = parameters.dense(hidden, "last", 8)
        return logits, named(sigmoid(logits), "labels")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        columns, labels = draw(rng, 128)
        logits, output = forward(columns)
        return {logits: (output.value - labels).astype(np.float32) / 128}

    train(step, parameters, steps=1000, rate=5e-3, seed=_TRAINING)
    known, known_labels = draw(np.random.default_rng(_TRAINING), 4000)
    scores = forward(known)[1].value
    grid = np.linspace(0.05, 0.7, 40)
    thresholds = [
        grid[np.argmax([measures.f1(known_labels[:, one], scores[:, one] > at) for at in grid])]
        for one in range(8)
    ]
    fresh, truth = draw(np.random.default_rng(_FRESH), 4000)

    def measure(run: Run) -> float:
        got = run_rows(run, "columns", fresh)["labels"] > thresholds
        return float(np.mean([measures.f1(truth[:, one], got[:, one]) for one in range(8)]))

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("columns", draw(np.random.default_rng(_CALIBRATION), 200)[0]),
        metric="mean F1 of eight labels",
        measure=measure,
        outputs=declare("labels", "threshold"),
    )


DEVELOPED = {
    make.__name__: make
    for make in (
        *(log_normal_quantity, location_score, depth, embedding, sound_separation, rare_labels),
    )
}
"""By name."""
