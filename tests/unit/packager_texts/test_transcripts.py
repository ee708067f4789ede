"""Texts of tokens are judged by words: what a word is, how texts are compared, and by whom."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration, check_outputs
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.progress import silent
from edgepack.packager.source.model import load_source
from edgepack.packager.stages.end_gate import least_that_holds
from edgepack.packager.tasks.describe import describe, with_heads
from edgepack.packager.tasks.possible import possible_tasks
from edgepack.packager.tasks.transcript.answers import encode_answers, measure_with_answers
from edgepack.packager.tasks.transcript.vocabulary import with_words
from edgepack.packager.tensors.sequence import Samples
from edgepack.packager.tensors.spec import TensorSpec
from edgepack.tasks.description import TaskOutputs
from edgepack.tasks.details import SAME_TEXTS
from edgepack.tasks.inputs import PromptInput, SoundInput
from edgepack.tasks.transcript.measure import TASK
from edgepack.tasks.transcript.words import TokenSettings, WordReader
from tests.graphs import graph_model

Outputs = dict[str, npt.NDArray[np.generic]]

_PLAIN = TaskOutputs(task="transcript", outputs=("tokens",), source="graph")
_PROMPT = PromptInput(name="ids", max_tokens=64, output="tokens", vocabulary=1000)
_SOUND = SoundInput(
    name="features",
    rate=16_000,
    samples=32_000,
    fft=400,
    hop=160,
    mels=80,
    output="tokens",
    vocabulary=1000,
    timestamps=10,
)


def _byte_level(words: Sequence[str]) -> Tokenizer:
    encoded = [pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(w) for w in words]
    pieces = ["".join(piece for piece, _ in each) for each in encoded]
    tokenizer = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, "a"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(decoder: decoders.Decoder, pieces: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, pieces[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoder
    return tokenizer


def _outputs(*texts: Sequence[int]) -> list[Outputs]:
    return [{"tokens": np.array([text], np.int64)} for text in texts]


def _words(tokenizer: Tokenizer, text: Sequence[int]) -> list[tuple[int, ...]]:
    part = with_words(_PLAIN, _PROMPT, tokenizer.to_str().encode(), _outputs(text))
    assert WordReader(part).unit == "word"
    return list(WordReader(part).read(np.array([text])))


def test_words_are_those_of_the_text_for_each_kind_of_vocabulary() -> None:
    special = ["</s>"]
    bytes_ = _byte_level(["a", "the", " the", " ri", "ver", ","])
    bytes_.add_special_tokens(special)
    assert _words(bytes_, [6, 1, 3, 4, 5, 2, 6]) == [(1,), (3, 4, 5), (2,)]
    sentence = _pieces(decoders.Metaspace(), ["a", "▁the", "▁ri", "ver", ","])
    sentence.add_special_tokens(special)
    assert _words(sentence, [1, 2, 3, 4, 1, 5]) == [(1,), (2, 3, 4), (1,)]
    pieces = _pieces(decoders.WordPiece(), ["a", "the", "ri", "##ver", ","])
    pieces.add_special_tokens(special)
    assert _words(pieces, [1, 2, 3, 4, 1]) == [(1,), (2, 3, 4), (1,)]


def test_in_scripts_without_spaces_a_token_is_the_unit() -> None:
    tokenizer = _byte_level(["a", " the", "日本", "語", "です", " river"])
    content = tokenizer.to_str().encode()
    part = with_words(_PLAIN, _PROMPT, content, _outputs([2, 3, 4, 1], [3, 4]))
    assert WordReader(part).unit == "token"
    assert WordReader(part).read(np.array([2, 3, 0])) == ((2,), (3,), (0,))
    mixed = with_words(_PLAIN, _PROMPT, content, _outputs([1, 5, 2, 1]))
    assert WordReader(mixed).unit == "word"
    assert WordReader(mixed).read(np.array([1, 0, 2, 3])) == ((1, 0), (2,), (3,))


def test_tokens_that_are_no_text_do_not_count() -> None:
    tokenizer = _byte_level(["a", " the", " river"])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    part = with_words(_PLAIN, _SOUND, tokenizer.to_str().encode(), _outputs([1, 2]))
    assert WordReader(part).read(np.array([[3, 10, 1, 999, 2, 4, -100]])) == ((1,), (2,))
    assert part.settings["silent"] == ((3, 4), (10, 999))
    assert WordReader(part).read(np.zeros((1, 3), np.float32)) == ()
    assert WordReader(part).read(None) == ()


def test_settings_fit_any_vocabulary_and_are_checked() -> None:
    begins = set(range(0, 60_000, 3))
    settings = TokenSettings.of_tokens(begins, {1, 2, 59_999})
    part = TaskOutputs(task="transcript", outputs=("t",), settings=settings.as_settings)
    reader = WordReader(part)
    assert settings.silent == ((1, 2), (59_999, 59_999))
    assert reader.read(np.array([0, 4, 3, 59_997, 70_000])) == ((0, 4), (3,), (59_997, 70_000))
    assert TokenSettings.of_tokens(set(), set()).as_settings == {}
    with pytest.raises(ValueError, match=r"(?i)base64|padding"):
        WordReader(TaskOutputs(task="transcript", outputs=("t",), settings={"begins": "=?"}))


def _texts(count: int, length: int = 10) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, 90, length).tolist() for _ in range(count)]


def test_word_error_counts_replaced_added_and_lost_words() -> None:
    texts = _texts(50)
    changed = [list(text) for text in texts]
    changed[0][3] = 99
    changed[1].insert(2, 98)
    del changed[2][5]
    expected = TASK.open(_PLAIN, _outputs(*texts))
    found = expected.measure(_outputs(*changed))
    assert found.value == pytest.approx(1 - 3 / 500)
    assert found.words.startswith("token error 0.0060 (at most 0.0")
    assert found.words.endswith("with 95 % confidence), 47 of 50 texts equal")
    assert found.measures[0].metric == "token_accuracy"
    assert 0.97 < found.low < found.value
    assert found.details[SAME_TEXTS] == pytest.approx(0.94)
    assert found.losses[:4] == pytest.approx((0.1, 0.1, 0.1, 0.0))
    (few,) = expected.of([0, 5]).measure(_outputs(changed[0], changed[5])).measures
    assert few.value == pytest.approx(0.95)
    endless = expected.measure(_outputs(*[[1] * 400] * 50))
    assert endless.value == pytest.approx(0.0, abs=0.02)
    assert expected.measure([{}] * 50).value == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("words", "wrong", "holds"), [(60, 1, True), (60, 2, False), (120, 2, False)]
)
def test_of_few_words_one_may_differ_and_not_one_more_than_the_budget(
    words: int, wrong: int, holds: bool
) -> None:
    expected = TASK.open(_PLAIN, _outputs(*[[1] * 10] * (words // 10)))
    got = _outputs([99] * wrong + [1] * (10 - wrong), *[[1] * 10] * (words // 10 - 1))
    (measure,) = expected.measure(got).measures
    least = least_that_holds(measure, 0.99)
    assert (measure.value >= least) is holds
    assert least == pytest.approx(min(0.99, 1 - 1 / words))


def test_a_float_model_that_writes_nothing_makes_a_weak_verdict() -> None:
    silent_part = TaskOutputs(task="transcript", outputs=("tokens",), settings={"silent": [[0, 9]]})
    expected = TASK.open(silent_part, _outputs([0, 1], [2]))
    assert "writes no text" in expected.measure(_outputs([3], [4])).doubt
    assert expected.measure(_outputs([3], [4])).value == 1.0
    assert expected.measure(_outputs([30], [4])).value == pytest.approx(0.5)


def test_answers_judge_both_models() -> None:
    tokenizer = _byte_level(["?", " the", " river", " runs", " fast", " slow", "the"])
    content = tokenizer.to_str().encode()
    own = _outputs(*[[1, 2, 3, 4]] * 20)
    part = with_words(_PLAIN, _PROMPT, content, own)
    lines = ["  the river  runs slow ", *["the river runs slow"] * 19]
    answers = encode_answers(part, content, 1000, lines, own)
    assert all(one["tokens"].tolist() == [[1, 2, 3, 5]] for one in answers)
    better = _outputs([1, 2, 3, 5], *[[1, 2, 3, 4]] * 19)
    found = measure_with_answers(part, answers, own, better)
    assert found.words.startswith("word error 0.2375, float model 0.2500 against the answers (")
    assert found.measures[0].scale.best == pytest.approx(0.75)
    assert found.value == 1.0
    worse = measure_with_answers(part, answers, own, _outputs([2, 2, 2], *[[1, 2, 3, 4]] * 19))
    assert worse.value == pytest.approx(1 - 2 / 80)
    assert worse.low < worse.value
    assert "19 of 20 texts equal" in worse.notes[1]


def test_answers_that_the_float_model_gets_wrong_do_not_decide() -> None:
    own = _outputs(*[[1, 2, 3, 4]] * 20)
    answers, broken = _outputs(*[[7, 8, 9, 4]] * 20), _outputs(*[[5, 6, 5, 4]] * 20)
    found = measure_with_answers(_PLAIN, answers, own, broken)
    assert found.value == pytest.approx(0.25)
    assert "token error is 0.7500 against 20 answers with 80 tokens" in found.notes[0]


def _generator(folder: Path) -> Path:
    """Says what goes in, number by number, in a loop."""
    text = """(int64[N] heard) => (int64[M] said) {
        size = Shape(heard) axis = Constant<value_ints = [0]>() count = Squeeze(size, axis)
        on = Constant<value = bool {1}>()
        said = Loop (count, on) <body = b (int64 i, bool before) => (bool after, int64 token) {
            after = Identity(before) token = Gather(heard, i) }> }"""
    onnx.save(graph_model(text), folder / "says.onnx")
    return folder / "says.onnx"


def test_a_graph_that_writes_a_whole_text_is_judged_by_its_tokens(tmp_path: Path) -> None:
    source = with_heads(load_source(_generator(tmp_path)), {})
    assert source.description.part_of("transcript") is not None
    texts = _texts(40)
    said: list[Outputs] = [{"said": np.array(text)} for text in texts]
    samples = Samples(count=40, read=lambda index: {"n": np.array(index)}, source="")
    found = describe(source, samples, lambda feeds: said[int(feeds["n"])], silent)
    part = found.description.part_of("transcript")
    assert part is not None
    assert "Output 'said' is a text token by token (told by its values)" in found.notes[0]
    reference = Reference(said, {}, found.description)
    verdict = reference.judge([{"said": np.array(text[:-1])} for text in texts])
    assert (verdict.metric, verdict.passed) == ("token_accuracy", False)
    assert verdict.value == pytest.approx(0.9)
    assert reference.judge(said).value == 1.0
    always = [{"said": np.array([1, 2])}] * 40
    same = describe(source, samples, lambda feeds: always[int(feeds["n"])], silent)
    assert same.description.part_of("transcript") is None


def test_scores_are_no_transcript() -> None:
    declared = {"y": OutputDeclaration(task="transcript")}
    with pytest.raises(BuildError, match="tokens of a transcript are whole numbers"):
        check_outputs(declared, (TensorSpec(name="y", dtype="float32", shape=(1, 9)),))
    check_outputs(declared, (TensorSpec(name="y", dtype="int64", shape=(1, "n")),))
    rows = [np.array([[1, 2]]), np.array([[1, 2, 3]])]
    assert possible_tasks(rows) == ("classification", "transcript", "values")


def test_drift_counts_words_and_token_groups() -> None:
    tokenizer = _byte_level(["a", " the", " ri", "ver"])
    part = with_words(_PLAIN, _PROMPT, tokenizer.to_str().encode(), _outputs([1, 2, 3]))
    sketch = TASK.sketch(part, _outputs([1, 2, 3, 1])[0])
    assert sketch.numbers == {"words in a text": 3.0}
    assert sum(sketch.shares.values()) == pytest.approx(1.0)
    assert len(sketch.shares) == 16
    assert TASK.sketch(part, _outputs([])[0]).numbers == {"words in a text": 0.0}
