"""Nine models of kinds on which reports of accuracy were wrong; each is made in seconds."""

from collections.abc import Mapping

import numpy as np

from benchmarks.task_kinds import measures
from benchmarks.task_kinds.kind import TaskModel, declare, rows, run_rows
from benchmarks.task_kinds.tape import (
    Array,
    Parameters,
    Tensor,
    absolute,
    concat,
    constant,
    export,
    inputs,
    max_pool,
    mean,
    named,
    positions,
    relu,
    reshape,
    shares,
    sigmoid,
    softmax,
    train,
    transpose,
    upsample,
)
from benchmarks.tasks.task import Run

_TRAINING, _CALIBRATION, _FRESH = 11, 12, 13
"""Seeds of three draws of the same data."""

# --- ten quantities ---------------------------------------------------------------------------

_QUANTITIES = (
    *((900.0, 300.0), (800.0, 250.0), (1000.0, 350.0), (1200.0, 300.0), (700.0, 260.0)),
    *((21.0, 4.0), (7.0, 0.4), (3.3, 0.15), (4.0, 2.0), (0.02, 0.01)),
)
"""Mean and spread of power (W), CO2 (ppm), light (lx), speed (1/min), pressure (hPa), temperature
(°C), acidity (pH), voltage (V), wind (m/s) and vibration (m/s²)."""


def sensor_quantities() -> TaskModel:
    """Return ten quantities in their own units from 32 raw signals."""
    mixing = np.random.default_rng(1).normal(0, 0.4, (10, 32))
    means, spreads = np.array(_QUANTITIES, np.float32).T

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        normal = rng.normal(0, 1, (count, 10))
        signals = np.tanh(normal @ mixing) + rng.normal(0, 0.005, (count, 32))
        return signals.astype(np.float32), (means + spreads * normal).astype(np.float32)

    parameters = Parameters(2)

    def forward(signals: Array) -> Tensor:
        x = inputs(signals, "signals")
        for name in ("first", "second"):
            x = relu(parameters.dense(x, name, 96))
        return named(parameters.dense(x, "last", 10), "quantities")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        signals, truth = draw(rng, 128)
        output = forward(signals)
        return {output: 2 * (output.value - (truth - means) / spreads) / len(truth)}

    train(step, parameters, steps=900, seed=_TRAINING)
    last = parameters.tensors
    last["last.weight"].value *= spreads
    last["last.bias"].value = last["last.bias"].value * spreads + means
    fresh, truth = draw(np.random.default_rng(_FRESH), 1000)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("signals", draw(np.random.default_rng(_CALIBRATION), 150)[0]),
        metric="mean R2 of ten quantities",
        measure=lambda run: measures.r2(truth, run_rows(run, "signals", fresh)["quantities"]),
        outputs=declare("quantities", "values"),
    )


# --- super-resolution --------------------------------------------------------------------------


def draw_pictures(rng: np.random.Generator, count: int, size: int) -> Array:
    """Return pictures of overlapping bright and dark shapes on slopes, [count, 1, size, size]."""
    rows_, columns = np.mgrid[:size, :size] / size
    pictures = np.empty((count, 1, size, size), np.float32)
    for picture in pictures[:, 0]:
        slope = rng.normal(0, 0.3, 2)
        picture[:] = 0.5 + slope[0] * (rows_ - 0.5) + slope[1] * (columns - 0.5)
        for _ in range(5):
            top, left = rng.uniform(0, 1, 2)
            high, wide = rng.uniform(0.1, 0.35, 2)
            down, across = abs(rows_ - top) / high, abs(columns - left) / wide
            far = np.hypot(down, across) if rng.random() < 0.5 else np.maximum(down, across)
            cover = np.clip((1 - far) * 4, 0, 1)
            picture += cover * (rng.uniform(0, 1) - picture)
    return np.clip(pictures, 0, 1)


def _halve(pictures: Array) -> Array:
    count, channels, high, wide = pictures.shape
    blocks = pictures.reshape(count, channels, high // 2, 2, wide // 2, 2)
    return np.asarray(blocks.mean((3, 5)))


def super_resolution() -> TaskModel:
    """Return pictures of twice the size, with edges that overshoot 0 and 1."""
    parameters = Parameters(3)
    large = draw_pictures(np.random.default_rng(_TRAINING), 300, 32)
    small = _halve(large)

    def forward(pictures: Array) -> Tensor:
        x = inputs(pictures, "picture")
        hidden = relu(parameters.conv(x, "first", 16))
        hidden = relu(parameters.conv(hidden, "second", 8))
        hidden = relu(parameters.conv(upsample(hidden), "third", 8))
        return named(parameters.conv(hidden, "last", 1), "larger")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(large), 8)
        output = forward(small[chosen])
        return {output: (output.value - large[chosen]) / 100}

    train(step, parameters, steps=220, rate=5e-3)
    truth = draw_pictures(np.random.default_rng(_FRESH), 100, 32)
    fresh = _halve(truth)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows(
            "picture", _halve(draw_pictures(np.random.default_rng(_CALIBRATION), 60, 32))
        ),
        metric="PSNR, dB",
        measure=lambda run: measures.psnr(truth, run_rows(run, "picture", fresh)["larger"]),
        outputs=declare("larger", "picture"),
    )


# --- forecast ---------------------------------------------------------------------------------


def _draw_series(rng: np.random.Generator, count: int, length: int) -> Array:
    time = np.arange(length) + rng.integers(0, 24, (count, 1))
    level = np.exp(rng.uniform(np.log(2), np.log(2000), (count, 1)))
    day = np.sin(2 * np.pi * time / 24 + rng.normal(0, 0.3, (count, 1)))
    half = np.sin(4 * np.pi * time / 24 + rng.normal(0, 0.3, (count, 1)))
    swing = rng.uniform(0.03, 0.12, (count, 1))
    noise = rng.normal(0, 0.006, (count, length))
    return np.asarray(level * (1 + swing * (day + 0.5 * half) + noise), np.float32)


def forecast() -> TaskModel:
    """Return the next 24 hours of series of very different scale."""
    parameters = Parameters(4)

    def forward(history: Array) -> Tensor:
        x = inputs(history, "history")
        level = mean(x, 1)
        centred = x - level
        spread = mean(absolute(centred), 1)
        hidden = relu(parameters.dense(centred / spread, "first", 48))
        hidden = relu(parameters.dense(hidden, "second", 48))
        return named(parameters.dense(hidden, "last", 24) * spread + level, "next_day")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        series = _draw_series(rng, 64, 72)
        output = forward(series[:, :48])
        spread = np.abs(series[:, :48] - series[:, :48].mean(1, keepdims=True)).mean(1) + 1e-6
        error = (output.value - series[:, 48:]) / spread[:, None] ** 2
        return {output: error / 64}

    train(step, parameters, steps=900, seed=_TRAINING)
    fresh = _draw_series(np.random.default_rng(_FRESH), 800, 72)

    def measure(run: Run) -> float:
        got = run_rows(run, "history", fresh[:, :48])["next_day"]
        truth, last = fresh[:, 48:], fresh[:, 47:48]
        naive = np.abs(truth - last).mean(1)
        return float(1 - (np.abs(truth - got).mean(1) / naive).mean())

    series = _draw_series(np.random.default_rng(_CALIBRATION), 150, 72)
    return TaskModel(
        model=export([forward(fresh[:1, :48])]),
        calibration=rows("history", series[:, :48]),
        metric="skill against the last value",
        measure=measure,
        outputs=declare("next_day", "values"),
    )


# --- density map ------------------------------------------------------------------------------


def _draw_crowds(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Return pictures with blobs, and maps in which each blob has the sum 1."""
    size = 32
    down, across = np.mgrid[:size, :size]
    pictures = rng.normal(0.2, 0.08, (count, 1, size, size))
    maps = np.zeros((count, 1, size, size))
    for picture, density in zip(pictures[:, 0], maps[:, 0], strict=True):
        is_crowd = rng.random() < 0.25
        middle = rng.uniform(8, size - 8, 2)
        for _ in range(rng.integers(15, 40) if is_crowd else rng.integers(2, 12)):
            top, left = rng.normal(middle, 4) if is_crowd else rng.uniform(1, size - 1, 2)
            distance = (down - top) ** 2 + (across - left) ** 2
            picture += rng.uniform(0.3, 0.9) * np.exp(-distance / 2 / rng.uniform(0.7, 1.4) ** 2)
            bump = np.exp(-distance / 2 / 2.5**2)
            density += bump / bump.sum()
    return pictures.astype(np.float32), maps.astype(np.float32)


def crowd_density() -> TaskModel:
    """Return a density map with the number of objects as its sum."""
    parameters = Parameters(5)
    pictures, maps = _draw_crowds(np.random.default_rng(_TRAINING), 400)

    def forward(pictures: Array) -> Tensor:
        x = inputs(pictures, "picture")
        hidden = relu(parameters.conv(x, "first", 10))
        hidden = relu(parameters.conv(hidden, "second", 10))
        hidden = relu(parameters.conv(hidden, "third", 10))
        return named(relu(parameters.conv(hidden, "last", 1, 1)), "density")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(maps), 8)
        output = forward(pictures[chosen])
        error = output.value - maps[chosen]
        of_sum = error.sum((2, 3), keepdims=True) / 1000
        return {output: error + of_sum}

    parameters.zeros("last.bias", 1).value += 0.02
    train(step, parameters, steps=200, rate=5e-3)
    fresh, truth = _draw_crowds(np.random.default_rng(_FRESH), 300)

    def measure(run: Run) -> float:
        counts = truth.sum((1, 2, 3))
        got = run_rows(run, "picture", fresh)["density"].sum((1, 2, 3))
        return float(1 - np.abs(counts - got).sum() / counts.sum())

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("picture", _draw_crowds(np.random.default_rng(_CALIBRATION), 80)[0]),
        metric="1 - error of the count",
        measure=measure,
        outputs=declare("density", "sums"),
    )


# --- probabilities ----------------------------------------------------------------------------


def class_probabilities() -> TaskModel:
    """Return the probabilities of two classes from 16 columns of a table."""
    generator = np.random.default_rng(6)
    weights, pairs = generator.normal(0, 1.6, 16), generator.normal(0, 0.5, (16, 16))
    units = np.exp(generator.uniform(-2, 4, 16))

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        normal = rng.normal(0, 1, (count, 16))
        score = normal @ weights + np.einsum("ni,ij,nj->n", normal, pairs, normal) - 4
        labels = rng.random(count) < 1 / (1 + np.exp(-1.5 * score))
        return (normal * units).astype(np.float32), labels.astype(np.int64)

    parameters = Parameters(7)

    def forward(columns: Array) -> tuple[Tensor, Tensor]:
        x = inputs(columns, "columns") * constant((1 / units[None]).astype(np.float32))
        hidden = relu(parameters.dense(x, "first", 64))
        hidden = relu(parameters.dense(hidden, "second", 48))
        logits = parameters.dense(hidden, "last", 2)
        return logits, named(softmax(logits), "probabilities")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        columns, labels = draw(rng, 128)
        logits, output = forward(columns)
        return {logits: (output.value - np.eye(2)[labels]).astype(np.float32) / len(labels)}

    train(step, parameters, steps=1200, rate=5e-3, seed=_TRAINING)
    fresh, labels = draw(np.random.default_rng(_FRESH), 3000)
    base = measures.log_loss(labels, np.tile(np.bincount(labels) / len(labels), (len(labels), 1)))

    def measure(run: Run) -> float:
        got = run_rows(run, "columns", fresh)["probabilities"]
        return 1 - measures.log_loss(labels, got) / base

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("columns", draw(np.random.default_rng(_CALIBRATION), 150)[0]),
        metric="1 - log loss / that of the base rate",
        measure=measure,
        outputs=declare("probabilities", "probabilities"),
    )


# --- segmentation -----------------------------------------------------------------------------


def _draw_scenes(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    size = 32
    down, across = np.mgrid[:size, :size]
    colors = np.array([[0.3, 0.3, 0.3], [0.5, 0.3, 0.35], [0.3, 0.45, 0.4], [0.4, 0.4, 0.55]])
    labels = np.zeros((count, size, size), np.int64)
    for picture in labels:
        for index in rng.integers(1, 4, 3):
            top, left = rng.uniform(4, size - 4, 2)
            radius = rng.uniform(4, 10)
            picture[(down - top) ** 2 + (across - left) ** 2 < radius**2] = index
    light = rng.normal(0, 0.05, (count, 1, 1, 3))
    pictures = colors[labels] + light + rng.normal(0, 0.16, (count, size, size, 3))
    return np.ascontiguousarray(np.moveaxis(pictures, -1, 1), np.float32), labels


def noisy_segmentation() -> TaskModel:
    """Return four classes of each point, from pictures that hardly show the classes."""
    parameters = Parameters(8)
    pictures, labels = _draw_scenes(np.random.default_rng(_TRAINING), 300)

    def forward(pictures: Array) -> Tensor:
        x = inputs(pictures, "picture")
        hidden = relu(parameters.conv(x, "first", 10))
        low = relu(parameters.conv(max_pool(hidden), "second", 16))
        low = relu(parameters.conv(low, "third", 16, dilation=2))
        joined = concat([upsample(low), hidden], 1)
        return named(parameters.conv(joined, "last", 4, 1), "classes")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(labels), 8)
        output = forward(pictures[chosen])
        error = shares(np.moveaxis(output.value, 1, -1)) - np.eye(4)[labels[chosen]]
        return {output: np.moveaxis(error, -1, 1).astype(np.float32) / 1000}

    train(step, parameters, steps=160, rate=1e-2)
    fresh, truth = _draw_scenes(np.random.default_rng(_FRESH), 150)

    def measure(run: Run) -> float:
        return measures.mean_iou(truth, run_rows(run, "picture", fresh)["classes"].argmax(1), 4)

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("picture", _draw_scenes(np.random.default_rng(_CALIBRATION), 60)[0]),
        metric="mean IoU",
        measure=measure,
        outputs=declare("classes", "segmentation"),
    )


# --- encoder-decoder --------------------------------------------------------------------------

_PAD, _START, _END, _FIRST = 0, 1, 2, 3
_DIGITS, _LONGEST, _POSITIONS = 10, 12, 16


def _draw_sums(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Return numbers of 4 to 12 digits, and the running sums of their digits modulo ten."""
    lengths = rng.integers(4, _LONGEST + 1, count)
    digits = rng.integers(0, _DIGITS, (count, _LONGEST))
    source = np.full((count, _POSITIONS), _PAD, np.int64)
    target = np.full((count, _POSITIONS + 1), _PAD, np.int64)
    target[:, 0] = _START
    for row, length in enumerate(lengths):
        source[row, :length] = digits[row, :length] + _FIRST
        source[row, length] = _END
        target[row, 1 : length + 1] = digits[row, :length].cumsum() % _DIGITS + _FIRST
        target[row, length + 1] = _END
    return source, target


def encoder_decoder() -> TaskModel:
    """Return texts of up to 13 tokens and an end token; the table of positions has 16 rows."""
    parameters = Parameters(9)
    tokens, width = _FIRST + _DIGITS, 24

    def forward(source: Array, prefix: Array) -> Tensor:
        given = inputs(prefix, "prefix")
        queries = parameters.embed(positions(given), "queries", _POSITIONS, width)
        read = inputs(source, "source")
        keys = transpose(parameters.embed(positions(read), "keys", _POSITIONS, width), 1, 0)
        values = parameters.embed(read, "source", tokens, width)
        before = parameters.embed(given, "prefix", tokens, width)
        hidden = concat([softmax(queries @ keys * 0.4) @ values, before], 2)
        hidden = relu(parameters.dense(hidden, "hidden", 96))
        return named(parameters.dense(hidden, "last", tokens), "logits")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        source, target = _draw_sums(rng, 32)
        output = forward(source, target[:, :-1])
        error = shares(output.value) - np.eye(tokens)[target[:, 1:]]
        return {output: (error * (target[:, 1:, None] != _PAD)).astype(np.float32) / 100}

    train(step, parameters, steps=800, rate=1e-2, seed=_TRAINING)
    fresh, truth = _draw_sums(np.random.default_rng(_FRESH), 60)

    def measure(run: Run) -> float:
        wrong = total = 0
        for source, target in zip(fresh, truth, strict=True):
            prefix = np.full((1, _POSITIONS), _PAD, np.int64)
            prefix[0, 0] = _START
            for place in range(1, _POSITIONS):
                (logits,) = run({"source": source[None], "prefix": prefix}).values()
                prefix[0, place] = logits[0, place - 1].argmax()
                if prefix[0, place] == _END:
                    break
            wanted = _text_of(target)
            wrong += measures.edits(wanted, _text_of(prefix[0]))
            total += len(wanted)
        return 1 - wrong / total

    rng = np.random.default_rng(_CALIBRATION)
    samples = []
    for source, target in zip(*_draw_sums(rng, 80), strict=True):
        prefix = target[:-1].copy()
        prefix[rng.integers(1, 12) :] = _PAD
        samples.append({"source": source[None], "prefix": prefix[None]})
    return TaskModel(
        model=export(
            [forward(fresh[:1], truth[:1, :-1])],
            free_axes={"prefix": {1: "steps"}, "logits": {1: "steps"}, "source": {1: "length"}},
        ),
        calibration=samples,
        metric="1 - edits / tokens, greedy",
        measure=measure,
        outputs=declare("logits", "tokens", tokens="prefix"),
        shapes={"prefix": (1, _POSITIONS), "source": (1, _POSITIONS)},
    )


def _text_of(tokens: Array) -> list[int]:
    """Return the tokens between start and end."""
    (ends,) = np.nonzero(tokens == _END)
    return [int(token) for token in tokens[1 : ends[0] if len(ends) else len(tokens)]]


# --- text recognizer --------------------------------------------------------------------------

_GLYPHS, _STEPS = 16, 24


def draw_lines(rng: np.random.Generator, count: int) -> tuple[Array, Array, list[list[int]]]:
    """Return pictures of lines in a script of 16 glyphs, the class of each step, and the texts.

    The last class is the blank.
    """
    script = np.random.default_rng(10).random((_GLYPHS, 9, 5)) < 0.45
    pictures = rng.normal(0, 0.14, (count, 1, 16, 4 * _STEPS))
    steps = np.full((count, _STEPS), _GLYPHS)
    texts: list[list[int]] = []
    for picture, classes in zip(pictures[:, 0], steps, strict=True):
        left, top = int(rng.integers(1, 6)), int(rng.integers(3, 6))
        text: list[int] = []
        while left + 5 <= 4 * _STEPS and len(text) < 9:
            glyph = int(rng.integers(0, _GLYPHS))
            if text and glyph == text[-1]:
                continue
            picture[top : top + 9, left : left + 5] += script[glyph] * rng.uniform(0.6, 1)
            classes[(left + 2) // 4] = glyph
            text.append(glyph)
            left += int(rng.integers(7, 11))
        texts.append(text)
    return pictures.astype(np.float32), steps, texts


def text_recognizer() -> TaskModel:
    """Return a row of classes for each of 24 steps along a line of text (CTC)."""
    parameters = Parameters(11)
    pictures, steps, _ = draw_lines(np.random.default_rng(_TRAINING), 2000)

    def forward(pictures: Array) -> tuple[Tensor, Tensor]:
        x = inputs(pictures, "line")
        hidden = relu(parameters.conv(x, "first", 16, 5, 2))
        hidden = relu(parameters.conv(hidden, "second", 24, 3, 2))
        _, channels, high, wide = hidden.value.shape
        columns = reshape(hidden, channels * high, wide)
        columns = transpose(relu(parameters.conv(columns, "third", 64)), 0, 2, 1)
        logits = parameters.dense(columns, "last", _GLYPHS + 1)
        return logits, named(softmax(logits), "characters")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(steps), 16)
        logits, output = forward(pictures[chosen])
        error = output.value - np.eye(_GLYPHS + 1)[steps[chosen]]
        return {logits: error.astype(np.float32) / 100}

    train(step, parameters, steps=650, rate=1e-2)
    fresh, _, truth = draw_lines(np.random.default_rng(_FRESH), 400)

    def measure(run: Run) -> float:
        got = run_rows(run, "line", fresh)["characters"].argmax(-1)
        texts = [_merged(row) for row in got]
        return float(np.mean([text == wanted for text, wanted in zip(texts, truth, strict=True)]))

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("line", draw_lines(np.random.default_rng(_CALIBRATION), 80)[0]),
        metric="right lines",
        measure=measure,
        outputs=declare("characters", "text", blank=_GLYPHS),
        draw=draw_lines,
    )


def _merged(classes: Array) -> list[int]:
    """Return the text of steps: repetitions merged, blanks dropped."""
    before = np.concatenate([[_GLYPHS], classes[:-1]])
    return [
        int(one) for one, last in zip(classes, before, strict=True) if one not in (last, _GLYPHS)
    ]


# --- detector of page areas -------------------------------------------------------------------

_PAGE, _KINDS, _BINS = 48, 3, 8
_STRIDES = (8, 16)


def draw_pages(rng: np.random.Generator, count: int) -> tuple[Array, list[Array]]:
    """Return pictures of areas with three textures, and (left, top, right, bottom, kind)."""
    down, across = np.mgrid[:_PAGE, :_PAGE]
    textures = (down % 4 < 2, (down + across) % 6 < 3, across % 3 == 0)
    pictures = rng.normal(0.8, 0.04, (count, 1, _PAGE, _PAGE))
    areas = []
    for picture in pictures[:, 0]:
        found: list[tuple[float, ...]] = []
        for _ in range(rng.integers(1, 5)):
            wide, high = rng.integers(10, 34, 2)
            left, top = rng.integers(0, _PAGE - wide), rng.integers(0, _PAGE - high)
            box = (left, top, left + wide, top + high)
            if any(_touch(box, other) for other in found):
                continue
            kind = int(rng.integers(0, _KINDS))
            cut = (slice(top, top + high), slice(left, left + wide))
            picture[cut] -= 0.2 + textures[kind][cut] * rng.uniform(0.4, 0.7)
            found.append((*box, kind))
        areas.append(np.array(found, np.float32))
    return pictures.astype(np.float32), areas


def _touch(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


def _cells(stride: int) -> Array:
    """Return the centres of a level's places, [places, 2] (x, y)."""
    line = (np.arange(_PAGE // stride) + 0.5) * stride
    return np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)


def _targets(areas: list[Array], stride: int) -> tuple[Array, Array]:
    """Return class and distances to the sides (in strides) of each place; no class is 0."""
    cells = _cells(stride)
    classes = np.zeros((len(areas), len(cells), _KINDS), np.float32)
    sides = np.zeros((len(areas), len(cells), 4), np.float32)
    for row, boxes in enumerate(areas):
        for left, top, right, bottom, kind in boxes:
            is_small = max(right - left, bottom - top) <= 22
            if is_small != (stride == _STRIDES[0]):
                continue
            near = abs(cells - ((left + right) / 2, (top + bottom) / 2)).max(1) <= stride
            classes[row, near, int(kind)] = 1
            lengths = np.concatenate([cells - (left, top), (right, bottom) - cells], 1)
            sides[row, near] = np.clip(lengths[near] / stride, 0, _BINS - 1.01)
    return classes, sides


def page_detector() -> TaskModel:
    """Return classes and distributions of sides at two strides, as PicoDet does, undecoded."""
    parameters = Parameters(12)
    pictures, areas = draw_pages(np.random.default_rng(_TRAINING), 1200)
    targets = {stride: _targets(areas, stride) for stride in _STRIDES}

    def forward(pictures: Array) -> list[tuple[Tensor, Tensor, Tensor]]:
        x = relu(parameters.conv(inputs(pictures, "page"), "first", 8, 5, 2))
        x = relu(parameters.conv(x, "second", 16, 3, 2))
        level = relu(parameters.conv(x, "third", 24, 3, 2))
        heads = []
        for stride in _STRIDES:
            level = relu(parameters.conv(level, f"neck{stride}", 24))
            if stride > _STRIDES[0]:
                level = max_pool(relu(parameters.conv(level, f"down{stride}", 24)))
                level = relu(parameters.conv(level, f"wide{stride}", 24))
            rows_ = reshape(transpose(level, 0, 2, 3, 1), len(_cells(stride)), 24)
            logits = parameters.dense(rows_, f"class{stride}", _KINDS) - 3.0
            sides = parameters.dense(rows_, f"side{stride}", 4 * _BINS)
            scores = named(sigmoid(logits), f"scores_{stride}")
            heads.append((logits, scores, named(sides, f"sides_{stride}")))
        return heads

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(areas), 8)
        losses: dict[Tensor, Array] = {}
        for stride, (logits, scores, sides) in zip(
            _STRIDES, forward(pictures[chosen]), strict=True
        ):
            classes, lengths = (values[chosen] for values in targets[stride])
            losses[logits] = (scores.value - classes) / 20
            low = np.floor(lengths).astype(int)
            wanted = np.eye(_BINS)[low] * (1 - lengths + low)[..., None]
            wanted += np.eye(_BINS)[low + 1] * (lengths - low)[..., None]
            error = shares(sides.value.reshape(wanted.shape)) - wanted
            error *= classes.max(-1)[..., None, None]
            losses[sides] = error.reshape(sides.value.shape).astype(np.float32) / 20
        return losses

    train(step, parameters, steps=400, rate=1e-2)
    fresh, truth = draw_pages(np.random.default_rng(_FRESH), 1000)

    def measure(run: Run) -> float:
        outputs = run_rows(run, "page", fresh)
        found = wanted = right = 0
        for row, boxes in enumerate(truth):
            got = _decode({name: values[row] for name, values in outputs.items()})
            found, wanted = found + len(got), wanted + len(boxes)
            is_same = measures.box_ious(got[:, :4], boxes[:, :4]) >= 0.5
            is_same &= got[:, None, 4] == boxes[None, :, 4]
            right += int(is_same.any(0).sum())
        return 2 * right / (found + wanted)

    outputs = [output for _, *both in forward(fresh[:1]) for output in both]
    return TaskModel(
        model=export(outputs),
        calibration=rows("page", draw_pages(np.random.default_rng(_CALIBRATION), 80)[0]),
        metric="F1 of areas, IoU .5",
        measure=measure,
        outputs=declare(f"scores_{_STRIDES[0]}", "detections"),
    )


def _decode(outputs: Mapping[str, Array]) -> Array:
    """Return boxes (left, top, right, bottom, kind) after suppression."""
    boxes, scores = [], []
    for stride in _STRIDES:
        score = outputs[f"scores_{stride}"]
        sides = outputs[f"sides_{stride}"].reshape(-1, 4, _BINS)
        lengths = (shares(sides) * np.arange(_BINS)).sum(-1) * stride
        cells = _cells(stride)
        corners = [cells - lengths[:, :2], cells + lengths[:, 2:], score.argmax(1)[:, None]]
        boxes.append(np.concatenate(corners, 1))
        scores.append(score.max(1))
    joined, order = np.concatenate(boxes), np.argsort(-np.concatenate(scores))
    order = order[np.concatenate(scores)[order] > 0.5]
    kept: list[int] = []
    for index in order:
        if not kept or measures.box_ious(joined[[index], :4], joined[kept, :4]).max() < 0.4:
            kept.append(int(index))
    return joined[kept]


EXAMPLES = {
    make.__name__: make
    for make in (
        *(sensor_quantities, super_resolution, forecast, crowd_density, class_probabilities),
        *(noisy_segmentation, encoder_decoder, text_recognizer, page_detector),
    )
}
"""By name."""
