"""Tasks by an author without knowledge of the constants and thresholds of the code under test.

Change a task here only if broken: a task fitted to a verdict tests nothing.
"""

from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.task_kinds import measures
from benchmarks.task_kinds.kind import TaskModel, declare, rows, run_rows
from benchmarks.task_kinds.tape import (
    Array,
    Parameters,
    Tensor,
    concat,
    constant,
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
    softmax,
    square_root,
    tanh,
    train,
    transpose,
)
from benchmarks.tasks.task import Run

_TRAINING, _CALIBRATION, _FRESH = 31, 32, 33


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _error(logits: Tensor, labels: Array) -> Array:
    """Return the gradient of the cross entropy of the last axis, averaged."""
    wanted = np.eye(logits.value.shape[-1])[labels]
    return np.asarray((shares(logits.value) - wanted) / labels.size, np.float32)


def _logistic_error(logits: Tensor, labels: Array) -> Array:
    share = 1 / (1 + np.exp(-np.clip(logits.value, -30, 30)))
    return np.asarray((share - labels) / labels.size, np.float32)


def _perceptron(parameters: Parameters, x: Tensor, *widths: int) -> Tensor:
    """Apply linear layers with ReLU in between."""
    for count, width in enumerate(widths):
        x = parameters.dense(x, f"layer{count}", width)
        if count < len(widths) - 1:
            x = relu(x)
    return x


def glyphs() -> TaskModel:
    """Return the logits of 20 glyphs in noisy pictures."""
    script = _rng(300).random((20, 1, 10, 7)) < 0.5

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        labels = rng.integers(0, 20, count)
        pictures = rng.normal(0, 0.2, (count, 1, 16, 16))
        for picture, label in zip(pictures, labels, strict=True):
            top, left = rng.integers(0, 6), rng.integers(0, 9)
            picture[:, top : top + 10, left : left + 7] += script[label] * rng.uniform(0.6, 1.2)
        return pictures.astype(np.float32), labels

    parameters = Parameters(300)
    pictures, labels = draw(_rng(_TRAINING), 8000)

    def forward(pictures: Array) -> Tensor:
        x = relu(parameters.conv(inputs(pictures, "picture"), "first", 12, 5, 2))
        x = max_pool(relu(parameters.conv(x, "second", 32)))
        x = relu(parameters.dense(reshape(x, 32 * 16), "third", 64))
        return named(parameters.dense(x, "last", 20), "logits")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(labels), 32)
        output = forward(pictures[chosen])
        return {output: _error(output, labels[chosen])}

    train(step, parameters, steps=600, rate=4e-3)
    fresh, truth = draw(_rng(_FRESH), 3000)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("picture", draw(_rng(_CALIBRATION), 120)[0]),
        metric="accuracy",
        measure=lambda run: float(
            (run_rows(run, "picture", fresh)["logits"].argmax(1) == truth).mean()
        ),
        outputs=declare("logits", "classification"),
        draw=draw,
    )


def activity() -> TaskModel:
    """Return the probabilities of six activities from three axes of acceleration."""
    gaits = _rng(301).normal(0, 1, (6, 3, 4))

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        labels = rng.integers(0, 6, count)
        time = np.arange(64) / 64
        pace = rng.uniform(0.8, 1.25, (count, 1, 1, 1)) * np.array([2, 3, 5, 8])[:, None]
        waves = np.sin(2 * np.pi * pace * time + rng.uniform(0, 6.3, (count, 1, 4, 1)))
        strength = rng.uniform(0.5, 1.5, (count, 1, 1))
        signals = strength * (gaits[labels][..., None] * waves).sum(2)
        signals += np.array([0, 0, 9.8])[:, None] + rng.normal(0, 2.2, (count, 3, 64))
        return signals.astype(np.float32), labels

    parameters = Parameters(301)

    def forward(signals: Array) -> tuple[Tensor, Tensor]:
        x = relu(parameters.conv(inputs(signals, "acceleration"), "first", 16, 7, 2))
        x = relu(parameters.conv(x, "second", 24, 5, 2))
        x = reshape(mean(relu(parameters.conv(x, "third", 32, 5)), 2), 32)
        logits = parameters.dense(x, "last", 6)
        return logits, named(softmax(logits), "activities")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        signals, labels = draw(rng, 48)
        logits, _ = forward(signals)
        return {logits: _error(logits, labels)}

    train(step, parameters, steps=350, rate=4e-3, seed=_TRAINING)
    fresh, truth = draw(_rng(_FRESH), 3000)
    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("acceleration", draw(_rng(_CALIBRATION), 150)[0]),
        metric="accuracy",
        measure=lambda run: float(
            (run_rows(run, "acceleration", fresh)["activities"].argmax(1) == truth).mean()
        ),
        outputs=declare("activities", "classification"),
        draw=draw,
    )


def steering() -> TaskModel:
    """Return the angle of a wheel (radians) and a speed (km/h) from a picture of a road."""
    down, across = np.mgrid[:24, :40]

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        bend, offset = rng.normal(0, 0.35, (2, count, 1, 1, 1))
        far = 1 - down / 23
        middle = 20 + 16 * offset * (1 - far) + 18 * bend * far**2
        road = np.abs(across - middle) < 3 + 8 * (1 - far)
        pictures = 0.3 + 0.4 * road + rng.normal(0, 0.07, road.shape)
        angle = (bend - 0.4 * offset).reshape(count)
        speed = 110 - 130 * np.abs(bend).reshape(count)
        return pictures.astype(np.float32), np.stack([angle, speed], 1).astype(np.float32)

    parameters = Parameters(302)
    pictures, values = draw(_rng(_TRAINING), 1500)
    middle, spread = values.mean(0), values.std(0)

    def forward(pictures: Array) -> Tensor:
        x = relu(parameters.conv(inputs(pictures, "road"), "first", 8, 5, 2))
        x = relu(parameters.conv(x, "second", 16, 3, 2))
        x = relu(parameters.dense(reshape(x, 16 * 60), "third", 32))
        both = tanh(parameters.dense(x, "last", 2)) * constant(4 * spread[None])
        return named(both + constant(middle[None]), "commands")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(values), 24)
        output = forward(pictures[chosen])
        return {output: (output.value - values[chosen]) / spread**2 / 24}

    train(step, parameters, steps=350, rate=4e-3)
    fresh, truth = draw(_rng(_FRESH), 800)
    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("road", draw(_rng(_CALIBRATION), 100)[0]),
        metric="mean R2 of angle and speed",
        measure=lambda run: measures.r2(truth, run_rows(run, "road", fresh)["commands"]),
        outputs=declare("commands", "values"),
    )


def arm_pose() -> TaskModel:
    """Return place (metres) and orientation (quaternion) of a robot's hand from six joints."""
    axes = _rng(303).normal(0, 1, (6, 3))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    links = _rng(304).uniform(-0.4, 0.4, (6, 3))

    def product(left: Array, right: Array) -> Array:
        real = left[:, :1] * right[:, :1] - (left[:, 1:] * right[:, 1:]).sum(1, keepdims=True)
        rest = left[:, :1] * right[:, 1:] + right[:, :1] * left[:, 1:]
        return np.concatenate([real, rest + np.cross(left[:, 1:], right[:, 1:])], 1)

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        joints = rng.uniform(-0.8, 0.8, (count, 6))
        turn, place = np.tile([1.0, 0, 0, 0], (count, 1)), np.zeros((count, 3))
        for index in range(6):
            half = joints[:, [index]] / 2
            turn = product(turn, np.concatenate([np.cos(half), np.sin(half) * axes[index]], 1))
            link = np.tile([0, *links[index]], (count, 1))
            place += product(product(turn, link), turn * [1, -1, -1, -1])[:, 1:]
        return joints.astype(np.float32), np.concatenate([place, turn], 1).astype(np.float32)

    parameters = Parameters(303)

    def forward(joints: Array) -> tuple[Tensor, Tensor, Tensor]:
        x = relu(parameters.dense(inputs(joints, "joints"), "first", 128))
        x = relu(parameters.dense(x, "second", 96))
        turn = parameters.dense(x, "turn", 4)
        length = square_root(mean(turn * turn, 1) * 4.0 + 1e-6)
        return named(parameters.dense(x, "place", 3), "place"), named(turn / length, "turn"), turn

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        joints, truth = draw(rng, 96)
        place, _, turn = forward(joints)
        return {place: (place.value - truth[:, :3]) / 96, turn: (turn.value - truth[:, 3:]) / 96}

    train(step, parameters, steps=1200, rate=5e-3, seed=_TRAINING)
    fresh, truth = draw(_rng(_FRESH), 8000)

    def measure(run: Run) -> float:
        got = run_rows(run, "joints", fresh)
        far = np.linalg.norm(got["place"] - truth[:, :3], axis=1)
        cosine = np.clip(np.abs((got["turn"] * truth[:, 3:]).sum(1)), 0, 1)
        angle = 2 * np.arccos(cosine)
        return float(((far < 0.05) & (angle < 0.1)).mean())

    place, turn, _ = forward(fresh[:1])
    return TaskModel(
        model=export([place, turn]),
        calibration=rows("joints", draw(_rng(_CALIBRATION), 200)[0]),
        metric="share within 5 cm and .1 rad",
        measure=measure,
        outputs=declare("place", "values", tolerance=0.05)
        + declare("turn", "values", tolerance=0.05),
    )


def landmarks() -> TaskModel:
    """Return a map of likelihood for each of four landmarks of a figure."""
    down, across = np.mgrid[:24, :24]
    shape = np.array([[-6, 0], [6, 0], [0, -6], [0, 6]])

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        middle = rng.uniform(9, 14, (count, 1, 2))
        angle = rng.normal(0, 0.4, count)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = middle + np.einsum("pk,jkn->npj", shape, turn) + rng.normal(0, 0.8, (count, 4, 2))
        far = (down - points[..., :1, None]) ** 2 + (across - points[..., 1:, None]) ** 2
        looks = np.array([1.0, 0.7, -0.6, -1.0])[:, None, None]
        pictures = (looks * np.exp(-far / 4)).sum(1, keepdims=True)
        return (pictures + rng.normal(0, 0.2, pictures.shape)).astype(np.float32), points

    parameters = Parameters(305)
    pictures, points = draw(_rng(_TRAINING), 800)

    def forward(pictures: Array) -> Tensor:
        x = relu(parameters.conv(inputs(pictures, "picture"), "first", 12, 5))
        x = relu(parameters.conv(x, "second", 12))
        return named(parameters.conv(x, "last", 4, 1), "maps")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(points), 8)
        output = forward(pictures[chosen])
        at = np.clip(np.rint(points[chosen]), 0, 23).astype(int)
        places = at[..., 0] * 24 + at[..., 1]
        share = shares(output.value.reshape(8, 4, -1)) - np.eye(576)[places]
        return {output: share.reshape(output.value.shape).astype(np.float32) / 32}

    train(step, parameters, steps=220, rate=6e-3)
    fresh, truth = draw(_rng(_FRESH), 2000)

    def measure(run: Run) -> float:
        flat = run_rows(run, "picture", fresh)["maps"].reshape(len(fresh), 4, -1).argmax(-1)
        got = np.stack([flat // 24, flat % 24], -1)
        return float((np.linalg.norm(got - truth, axis=-1) < 1.5).mean())

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("picture", draw(_rng(_CALIBRATION), 80)[0]),
        metric="landmarks within 1.5 points",
        measure=measure,
        outputs=declare("maps", "values"),
    )


def denoising() -> TaskModel:
    """Return a picture in 0..255 without its noise."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        phase = rng.uniform(0, 6.3, (2, count, 1, 1, 1))
        rates = rng.uniform(0.05, 0.6, (2, count, 1, 1, 1))
        down, across = np.mgrid[:32, :32]
        waves = np.sin(rates[0] * down + phase[0]) + np.sin(rates[1] * across + phase[1])
        clean = np.clip(127 + 55 * waves + 30 * np.sign(waves - 0.5), 0, 255)
        noisy = np.clip(clean + rng.normal(0, 18, clean.shape), 0, 255)
        return noisy.astype(np.float32), clean.astype(np.float32)

    parameters = Parameters(306)
    noisy, clean = draw(_rng(_TRAINING), 400)

    def forward(noisy: Array) -> Tensor:
        x = inputs(noisy, "noisy") * float(1 / 255)
        hidden = relu(parameters.conv(x, "first", 12, 5))
        hidden = relu(parameters.conv(hidden, "second", 8))
        return named((parameters.conv(hidden, "last", 1) + x) * 255.0, "clean")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(clean), 6)
        output = forward(noisy[chosen])
        return {output: (output.value - clean[chosen]) / 6000}

    train(step, parameters, steps=170, rate=5e-3)
    fresh, truth = draw(_rng(_FRESH), 120)

    def measure(run: Run) -> float:
        return measures.psnr(truth / 255, run_rows(run, "noisy", fresh)["clean"] / 255)

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("noisy", draw(_rng(_CALIBRATION), 60)[0]),
        metric="PSNR, dB",
        measure=measure,
        outputs=declare("clean", "picture"),
    )


def camera_shift() -> TaskModel:
    """Return by how many points the second of two pictures is moved, in both axes."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        shift = rng.normal(0, 1.2, (count, 2))
        down, across = np.mgrid[:16, :16]
        rates = rng.normal(0, 0.5, (2, count, 6, 1, 1))
        phase = rng.uniform(0, 6.3, (count, 6, 1, 1))

        def look(by: Array) -> Array:
            moved = [axis - by[:, [place], None, None] for place, axis in enumerate((down, across))]
            waves = np.sin(rates[0] * moved[0] + rates[1] * moved[1] + phase)
            return np.asarray(waves.mean(1) + rng.normal(0, 0.01, (count, 16, 16)))

        pictures = np.stack([look(np.zeros_like(shift)), look(shift)], 1)
        return pictures.astype(np.float32), shift.astype(np.float32)

    parameters = Parameters(307)

    def forward(pictures: Array) -> Tensor:
        x = inputs(pictures, "pair")
        x = relu(parameters.conv(x, "first", 24, 5, 2))
        x = relu(parameters.conv(x, "second", 32, 3, 2))
        x = relu(parameters.dense(reshape(x, 32 * 16), "third", 64))
        return named(parameters.dense(x, "last", 2), "shift")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        pictures, truth = draw(rng, 48)
        output = forward(pictures)
        return {output: (output.value - truth) / 48}

    train(step, parameters, steps=350, rate=4e-3, seed=_TRAINING)
    fresh, truth = draw(_rng(_FRESH), 1000)

    def measure(run: Run) -> float:
        got = run_rows(run, "pair", fresh)["shift"]
        far = np.linalg.norm(got - truth, axis=1).mean()
        return float(1 - far / np.linalg.norm(truth, axis=1).mean())

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("pair", draw(_rng(_CALIBRATION), 120)[0]),
        metric="1 - error / mean shift",
        measure=measure,
        outputs=declare("shift", "values"),
    )


def voice_activity() -> TaskModel:
    """Return for each of 40 frames the probability of speech."""
    voice = np.abs(_rng(309).normal(0, 1, (3, 12)))

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        switches = rng.random((count, 40)) < 0.12
        speaks = (switches.cumsum(1) + rng.integers(0, 2, (count, 1))) % 2 == 1
        sound = voice[rng.integers(0, 3, (count, 40))] * speaks[..., None]
        sound *= np.exp(rng.normal(-0.6, 0.5, (count, 40, 1)))
        noise = np.abs(rng.normal(0, 0.55, (count, 40, 12)))
        return np.log(sound + noise + 0.02).astype(np.float32), speaks

    parameters = Parameters(309)

    def forward(frames: Array) -> tuple[Tensor, Tensor]:
        x = transpose(inputs(frames, "frames"), 0, 2, 1)
        x = relu(parameters.conv(x, "first", 24, 5))
        x = relu(parameters.conv(x, "second", 24, 3, dilation=2))
        logits = transpose(parameters.conv(x, "last", 1, 1), 0, 2, 1)
        return logits, named(sigmoid(logits), "speech")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        frames, speaks = draw(rng, 24)
        logits, _ = forward(frames)
        return {logits: _logistic_error(logits, speaks[..., None])}

    train(step, parameters, steps=400, rate=4e-3, seed=_TRAINING)
    fresh, truth = draw(_rng(_FRESH), 400)

    def measure(run: Run) -> float:
        return measures.f1(truth, run_rows(run, "frames", fresh)["speech"][..., 0] > 0.5)

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("frames", draw(_rng(_CALIBRATION), 80)[0]),
        metric="F1 of frames",
        measure=measure,
        outputs=declare("speech", "values"),
    )


def heart_beats() -> TaskModel:
    """Return a curve with a peak at each heart beat of an ECG."""

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        signals = rng.normal(0, 0.12, (count, 1, 256))
        signals += 0.4 * np.sin(rng.uniform(0, 6, (count, 1, 1)) + np.arange(256) / 35)
        beats = np.zeros((count, 256), bool)
        time = np.arange(256)
        for signal, found in zip(signals[:, 0], beats, strict=True):
            at, gain = rng.uniform(8, 30), rng.uniform(0.4, 1.2)
            while at < 248:
                found[int(at)] = True
                signal += gain * np.exp(-(((time - at) / 2) ** 2))
                signal -= 0.4 * gain * np.exp(-(((time - at - 5) / 3) ** 2))
                signal += 0.25 * gain * np.exp(-(((time - at - 14) / 6) ** 2))
                at += rng.normal(36, 6)
        return signals.astype(np.float32), beats

    parameters = Parameters(310)
    signals, beats = draw(_rng(_TRAINING), 600)

    def forward(signals: Array) -> Tensor:
        x = relu(parameters.conv(inputs(signals, "ecg"), "first", 12, 9))
        x = relu(parameters.conv(x, "second", 12, 5, dilation=2))
        return named(parameters.conv(x, "last", 1, 5), "beats")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(beats), 12)
        output = forward(signals[chosen])
        return {output: _logistic_error(output, beats[chosen][:, None]) * 100}

    train(step, parameters, steps=350, rate=5e-3)
    fresh, truth = draw(_rng(_FRESH), 300)

    def measure(run: Run) -> float:
        got = run_rows(run, "ecg", fresh)["beats"][:, 0]
        right = found = 0
        for curve, wanted in zip(got, truth, strict=True):
            inner = curve[1:-1]
            peaks = (inner > 0) & (inner >= curve[:-2]) & (inner > curve[2:])
            places, beat_places = np.nonzero(peaks)[0] + 1, np.nonzero(wanted)[0]
            found += len(places)
            if len(places):
                near = np.abs(beat_places[:, None] - places[None]).min(1) <= 2
                right += int(near.sum())
        return 2 * right / (found + int(truth.sum()))

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("ecg", draw(_rng(_CALIBRATION), 80)[0]),
        metric="F1 of beats",
        measure=measure,
        outputs=declare("beats", "values"),
    )


def click_rate() -> TaskModel:
    """Return the probability of a click on an item, 13 % on average."""
    users, items = _rng(311).normal(0, 1, (2, 10, 6))

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        columns = rng.normal(0, 1, (count, 20))
        score = ((columns[:, :10] @ users) * (columns[:, 10:] @ items)).sum(1) / 7
        labels = rng.random(count) < 1 / (1 + np.exp(5.5 - 1.6 * score))
        return columns.astype(np.float32), labels

    parameters = Parameters(311)

    def forward(columns: Array) -> tuple[Tensor, Tensor]:
        logits = _perceptron(parameters, inputs(columns, "columns"), 64, 32, 1) - 3.5
        return logits, named(sigmoid(logits), "click")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        columns, labels = draw(rng, 512)
        logits, _ = forward(columns)
        return {logits: _logistic_error(logits, labels[:, None])}

    train(step, parameters, steps=700, rate=5e-3, seed=_TRAINING)
    fresh, labels = draw(_rng(_FRESH), 8000)
    share = labels.mean()
    base = -(share * np.log(share) + (1 - share) * np.log(1 - share))

    def measure(run: Run) -> float:
        got = run_rows(run, "columns", fresh)["click"]
        both = np.concatenate([1 - got, got], 1)
        return float(1 - measures.log_loss(labels.astype(int), both) / base)

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("columns", draw(_rng(_CALIBRATION), 300)[0]),
        metric="1 - log loss / that of the base rate",
        measure=measure,
        outputs=declare("click", "probabilities"),
    )


def machine_faults() -> TaskModel:
    """Return a signal as a healthy machine would emit; the error indicates faults."""

    def draw(rng: np.random.Generator, count: int, *, is_faulty: bool = False) -> Array:
        time = np.arange(64) / 64
        speed, phase = rng.uniform(3, 6, (count, 1)), rng.uniform(0, 6.3, (count, 1))
        angle = 2 * np.pi * speed * time + phase
        load = rng.uniform(0.5, 2, (count, 1))
        signals = load * (np.sin(angle) + 0.5 * np.sin(2 * angle + 1) + 0.2 * np.sin(3 * angle))
        if is_faulty:
            knocks = np.maximum(0, np.sin(angle + rng.uniform(0, 6.3, (count, 1)))) ** 30
            signals += load * rng.uniform(0.3, 1.2, (count, 1)) * knocks
        return (signals + rng.normal(0, 0.04, signals.shape)).astype(np.float32)

    parameters = Parameters(312)

    def forward(signals: Array) -> Tensor:
        x = inputs(signals, "signal")
        return named(_perceptron(parameters, x, 48, 8, 48, 64), "healthy")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        signals = draw(rng, 128)
        output = forward(signals)
        return {output: (output.value - signals) / 128}

    train(step, parameters, steps=1500, rate=5e-3, seed=_TRAINING)
    rng = _rng(_FRESH)
    fresh = np.concatenate([draw(rng, 1200), draw(rng, 1200, is_faulty=True)])

    def measure(run: Run) -> float:
        error = ((run_rows(run, "signal", fresh)["healthy"] - fresh) ** 2).mean(1)
        scale = (fresh**2).mean(1)
        return 2 * measures.auc(np.arange(2400) >= 1200, error / scale) - 1

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("signal", draw(_rng(_CALIBRATION), 120)),
        metric="2 AUC - 1 of the error",
        measure=measure,
        outputs=declare("healthy", "values"),
    )


def fruit_and_weight() -> TaskModel:
    """Return the logits of four sorts of fruit and the weight of the fruit in grams."""
    down, across = np.mgrid[:20, :20]
    colors = np.array([[0.9, 0.2], [0.6, 0.7], [0.4, 0.9], [0.75, 0.45]])

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array, Array]:
        sorts = rng.integers(0, 4, count)
        radius = rng.uniform(3, 8.5, count)
        middle = rng.uniform(8.5, 11.5, (2, count, 1, 1))
        far = (down - middle[0]) ** 2 + (across - middle[1]) ** 2
        inside = far < (radius**2)[:, None, None]
        color = colors[sorts] + rng.normal(0, 0.09, (count, 2))
        pictures = 0.15 + inside[:, None] * color[..., None, None]
        pictures = pictures + rng.normal(0, 0.06, pictures.shape)
        weights = radius**3 * np.array([0.9, 0.6, 1.1, 0.4])[sorts]
        return pictures.astype(np.float32), sorts, weights.astype(np.float32)[:, None]

    parameters = Parameters(313)
    pictures, sorts, weights = draw(_rng(_TRAINING), 2000)

    def forward(pictures: Array) -> tuple[Tensor, Tensor]:
        x = relu(parameters.conv(inputs(pictures, "picture"), "first", 8, 3, 2))
        x = relu(parameters.conv(x, "second", 16, 3, 2))
        x = relu(parameters.dense(reshape(x, 16 * 25), "third", 32))
        weight = named(parameters.dense(x, "weight", 1) * 100.0, "grams")
        return named(parameters.dense(x, "sort", 4), "sort"), weight

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        chosen = rng.integers(0, len(sorts), 32)
        sort, weight = forward(pictures[chosen])
        error = (weight.value - weights[chosen]) / 1e4 / 32
        return {sort: _error(sort, sorts[chosen]), weight: error}

    train(step, parameters, steps=400, rate=4e-3)
    fresh, fresh_sorts, fresh_weights = draw(_rng(_FRESH), 1500)

    def measure(run: Run) -> float:
        got = run_rows(run, "picture", fresh)
        right = (got["sort"].argmax(1) == fresh_sorts).mean()
        return float(min(right, measures.r2(fresh_weights, got["grams"])))

    return TaskModel(
        model=export(list(forward(fresh[:1]))),
        calibration=rows("picture", draw(_rng(_CALIBRATION), 120)[0]),
        metric="lesser of accuracy and R2",
        measure=measure,
        outputs=declare("sort", "classification") + declare("grams", "values"),
        draw=lambda rng, count: draw(rng, count)[:2],
    )


def claim_counts() -> TaskModel:
    """Return the expected numbers of five sorts of insurance claims in a year."""
    weights = _rng(314).normal(0, 0.3, (14, 5))
    offsets = np.log([0.02, 0.1, 0.3, 1.0, 4.0])

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        columns = rng.normal(0, 1, (count, 14))
        rates = np.exp(columns @ weights + 0.15 * (columns[:, :5] ** 2 - 1) + offsets)
        return columns.astype(np.float32), rates

    parameters = Parameters(314)

    def forward(columns: Array) -> tuple[Tensor, Tensor]:
        hidden = _perceptron(parameters, inputs(columns, "columns"), 64, 32, 5)
        logarithm = hidden + constant(offsets.astype(np.float32)[None])
        return logarithm, named(exp(logarithm), "claims")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        columns, rates = draw(rng, 256)
        logarithm, output = forward(columns)
        error = (output.value - rng.poisson(rates)) / rates.mean(0) / 256
        return {logarithm: error.astype(np.float32)}

    train(step, parameters, steps=1500, rate=5e-3, seed=_TRAINING)
    fresh, rates = draw(_rng(_FRESH), 3000)
    counts = _rng(315).poisson(rates)

    def deviance(expected: Array) -> Array:
        expected = np.maximum(expected, 1e-6)
        logarithm = np.log(np.maximum(counts, 1e-9) / expected)
        return np.asarray((counts * logarithm - (counts - expected)).sum(0))

    base = deviance(np.tile(counts.mean(0), (len(counts), 1)))

    def measure(run: Run) -> float:
        got = run_rows(run, "columns", fresh)["claims"]
        return float((1 - deviance(got) / base).mean())

    return TaskModel(
        model=export([forward(fresh[:1])[1]]),
        calibration=rows("columns", draw(_rng(_CALIBRATION), 200)[0]),
        metric="mean deviance that is explained",
        measure=measure,
        outputs=declare("claims", "values"),
    )


def demand_quantiles() -> TaskModel:
    """Return three quantiles of the demand of each of the next 12 days, by shop size."""
    levels = np.array([0.1, 0.5, 0.9])

    def draw(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        size = np.exp(rng.normal(3.5, 0.9, (count, 1)))
        time = np.arange(40) + rng.integers(0, 7, (count, 1))
        week = np.exp(0.35 * np.sin(2 * np.pi * time / 7) + rng.normal(0, 0.05, (count, 40)))
        trend = 1 + np.arange(40) * rng.normal(0, 0.004, (count, 1))
        demand = rng.poisson(np.maximum(size * week * trend, 0.1))
        return demand[:, :28].astype(np.float32), demand[:, 28:]

    parameters = Parameters(316)

    def forward(demand: Array) -> Tensor:
        x = inputs(demand, "demand")
        level = mean(x, 1) + 1.0
        hidden = relu(parameters.dense(concat([x / level, square_root(level)], 1), "first", 64))
        hidden = relu(parameters.dense(hidden, "second", 48))
        return named(reshape(parameters.dense(hidden, "last", 36) * level, 12, 3), "quantiles")

    def pinball(truth: Array, got: Array) -> Array:
        above = truth[..., None] - got
        return np.asarray(np.maximum(levels * above, (levels - 1) * above))

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        demand, truth = draw(rng, 96)
        output = forward(demand)
        slope = np.where(truth[..., None] > output.value, -levels, 1 - levels)
        size = demand.mean(1).reshape(-1, 1, 1) + 1
        return {output: (slope / size / 96).astype(np.float32)}

    train(step, parameters, steps=1200, rate=4e-3, seed=_TRAINING)
    fresh, truth = draw(_rng(_FRESH), 1200)
    size = fresh.mean(1).reshape(-1, 1, 1) + 1
    week_before = np.repeat(np.concatenate([fresh[:, -7:], fresh[:, -7:-2]], 1)[..., None], 3, 2)
    naive = (pinball(truth, week_before) / size).mean()

    def measure(run: Run) -> float:
        got = run_rows(run, "demand", fresh)["quantiles"]
        return float(1 - (pinball(truth, got) / size).mean() / naive)

    return TaskModel(
        model=export([forward(fresh[:1])]),
        calibration=rows("demand", draw(_rng(_CALIBRATION), 150)[0]),
        metric="pinball skill against a week before",
        measure=measure,
        outputs=declare("quantiles", "values"),
    )


def next_token() -> TaskModel:
    """Return the logits of the token behind each of 16 tokens (a causal language model)."""
    tokens, length, width = 24, 16, 32
    chances = _rng(317).dirichlet(np.full(tokens, 0.12), (tokens, 4))

    def draw(rng: np.random.Generator, count: int) -> Array:
        texts = np.zeros((count, length + 1), np.int64)
        topic = rng.integers(0, 4, count)
        texts[:, 0] = topic
        for place in range(1, length + 1):
            cumulated = chances[texts[:, place - 1], topic].cumsum(1)
            drawn = (rng.random((count, 1)) > cumulated).sum(1)
            texts[:, place] = np.minimum(drawn, tokens - 1)
        return texts

    parameters = Parameters(317)
    mask = np.triu(np.full((length, length), -30.0, np.float32), 1)[None]

    def forward(texts: Array) -> Tensor:
        x = parameters.embed(inputs(texts, "tokens"), "tokens", tokens, width)
        x = x + parameters.weight("places", 1, length, width, fan_in=width)
        y = parameters.layer_norm(x, "norm1")
        queries, keys = parameters.dense(y, "queries", width), parameters.dense(y, "keys", width)
        scores = queries @ transpose(keys, 0, 2, 1) * float(width**-0.5) + constant(mask)
        x = x + parameters.dense(
            softmax(scores) @ parameters.dense(y, "values", width), "out", width
        )
        y = relu(parameters.dense(parameters.layer_norm(x, "norm2"), "wide", 96))
        x = x + parameters.dense(y, "narrow", width)
        return named(parameters.dense(parameters.layer_norm(x, "norm3"), "last", tokens), "logits")

    def step(rng: np.random.Generator) -> Mapping[Tensor, Array]:
        texts = draw(rng, 24)
        output = forward(texts[:, :-1])
        return {output: _error(output, texts[:, 1:])}

    train(step, parameters, steps=700, rate=5e-3, seed=_TRAINING)
    fresh = draw(_rng(_FRESH), 500)
    base_shares = np.bincount(fresh[:, 1:].ravel(), minlength=tokens) / fresh[:, 1:].size
    base = measures.log_loss(fresh[:, 1:].ravel(), np.tile(base_shares, (fresh[:, 1:].size, 1)))

    def measure(run: Run) -> float:
        got = shares(run_rows(run, "tokens", fresh[:, :-1])["logits"]).reshape(-1, tokens)
        return 1 - measures.log_loss(fresh[:, 1:].ravel(), got) / base

    return TaskModel(
        model=export([forward(fresh[:1, :-1])]),
        calibration=rows("tokens", draw(_rng(_CALIBRATION), 100)[:, :-1]),
        metric="1 - log loss / that of single tokens",
        measure=measure,
        outputs=declare("logits", "tokens", tokens="tokens"),
    )


INDEPENDENT: Mapping[str, Callable[[], TaskModel]] = {
    make.__name__: make
    for make in (
        *(glyphs, activity, steering, arm_pose, landmarks, denoising, camera_shift),
        *(voice_activity, heart_beats, click_rate, machine_faults, fruit_and_weight),
        *(claim_counts, demand_quantiles, next_token),
    )
}
"""By name."""
