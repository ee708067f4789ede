"""Readers are judged by their texts: what is text, how it is compared, and what is refused."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from msgspec.structs import replace
from onnx import helper

from edgepack.errors import BuildError
from edgepack.packager.config.outputs import OutputDeclaration, declared_keys
from edgepack.packager.gates.accuracy import Reference
from edgepack.packager.gates.checks import check_accuracy
from edgepack.packager.gates.proof import is_doubtful, samples_to_prove
from edgepack.packager.gates.verdict import Verdict
from edgepack.packager.gates.verdict_notes import describe_verdict
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.progress import silent
from edgepack.packager.source.model import SourceModel, load_source
from edgepack.packager.tasks.describe import describe, with_heads
from edgepack.packager.tensors.sequence import Samples
from edgepack.tasks.description import ModelDescription
from edgepack.tasks.details import SAME_TEXTS
from edgepack.tasks.text.agreement import TextAgreement, measure_texts
from edgepack.tasks.text.costs import expected_cost
from edgepack.tasks.text.decoding import read_text, settle
from edgepack.tasks.text.edits import edit_distance
from edgepack.tasks.text.head import TextHead
from tests.graphs import graph_model

_CLASSES, _STEPS = 20, 40
_HEAD = TextHead(output="said", blank=0)

Floats = npt.NDArray[np.float32]
Outputs = dict[str, npt.NDArray[np.generic]]


def _say(text: Sequence[int], blank: int = 0, *, turned: bool = False) -> Outputs:
    """Probabilities whose best classes are a text, each character for a step and a blank after."""
    best = np.full(max(_STEPS, 2 * len(text)), blank)
    best[: 2 * len(text) : 2] = text
    rows = np.full((len(best), _CLASSES), 1e-6 / (_CLASSES - 1), np.float32)
    rows[np.arange(len(best)), best] = 1.0 - 1e-6
    return {"said": rows[:, None] if turned else rows[None]}


def _texts(count: int, length: int = 10) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(1, _CLASSES - 1, length).tolist() for _ in range(count)]


def _judge(expected: list[list[int]], got: list[list[int]]) -> Verdict:
    reference = Reference([_say(text) for text in expected], {}, _described(_HEAD))
    return reference.judge([_say(text) for text in got])


def _described(head: TextHead) -> ModelDescription:
    return ModelDescription(parts=(head.part,))


def _agreement(expected: list[list[int]], got: list[list[int]]) -> TextAgreement:
    pairs = [(tuple(want), tuple(have)) for want, have in zip(expected, got, strict=True)]
    costs = [expected_cost(_HEAD, _say(want), want, have) for want, have in pairs]
    found = measure_texts([want for want, _ in pairs], [have for _, have in pairs], costs)
    assert found is not None
    return found


def _with_mistakes(texts: list[list[int]], count: int) -> list[list[int]]:
    return [
        [text[0] % (_CLASSES - 2) + 1, *text[1:]] if number < count else text
        for number, text in enumerate(texts)
    ]


def test_a_reader_that_edits_characters_is_refused_with_the_numbers() -> None:
    texts = _texts(100)
    verdict = _judge(texts, _with_mistakes(texts, 20))
    assert (verdict.metric, verdict.budget) == ("string_agreement", 0.99)
    agreement = _agreement(texts, _with_mistakes(texts, 20))
    assert agreement.of_characters == pytest.approx(0.98)
    assert verdict.value == pytest.approx(0.8, abs=1e-4)
    assert not verdict.passed
    refusal = check_accuracy(load_profile("cpu"), verdict, 100, None)
    assert refusal is not None
    assert "keeps 0.8000 of what the float model reads (0.8000 of 100 texts are the same" in (
        refusal.problem
    )
    assert _judge(texts, _with_mistakes(texts, 1)).passed


def test_one_character_in_three_hundred_is_too_much_where_that_is_one_line_in_thirty() -> None:
    texts = _texts(120)
    verdict = _judge(texts, _with_mistakes(texts, 4))
    agreement = _agreement(texts, _with_mistakes(texts, 4))
    assert agreement.of_characters == pytest.approx(1 - 4 / 1200)
    assert verdict.value == agreement.of_lines == pytest.approx(1 - 4 / 120, abs=1e-4)
    assert not verdict.passed


def test_few_lines_prove_little_and_give_no_reason_to_doubt() -> None:
    texts = _texts(30)
    verdict = _judge(texts, texts)
    assert verdict.value == 1.0
    assert verdict.low == pytest.approx(30 / (30 + 1.645**2), abs=1e-3)
    assert not is_doubtful(verdict)
    assert (samples_to_prove(verdict, 30) or 0) > 200


def test_a_page_counts_as_many_lines() -> None:
    pages = [text * 40 for text in _texts(10)]
    agreement = _agreement(pages, _with_mistakes(pages, 4))
    assert agreement.same == pytest.approx(0.6)
    assert agreement.of_lines == pytest.approx(1 - 4 / 160, abs=1e-4)
    assert not _judge(pages, _with_mistakes(pages, 4)).passed
    assert _judge(pages, _with_mistakes(pages, 1)).passed


def test_the_report_says_how_many_texts_are_the_same_and_how_sure_that_is() -> None:
    texts = _texts(40)
    verdict = _judge(texts, _with_mistakes(texts, 1))
    details = verdict.agreements[0].details
    assert details[f"{SAME_TEXTS}_low"] < 0.975 < details[f"{SAME_TEXTS}_high"]
    samples = Samples(count=40, read=lambda index: {}, source="")
    first, second = describe_verdict(verdict, 40, samples, ())
    assert "Of the 400 characters that the float model reads it keeps 0.9975: 0.9975 need" in first
    assert (
        "Of lines it keeps 0.9750: 0.9750 of 40 texts are the same as a whole (95 %: 0.8" in first
    )
    assert "with 95 % confidence at least 0.8" in second


def test_of_few_characters_one_may_differ_where_nothing_says_how_sure_the_float_model_was() -> None:
    texts = _texts(4)
    chosen: list[Outputs] = [{"said": _say(text)["said"].argmax(-1)} for text in texts]

    def judge(mistakes: int) -> Verdict:
        others = [_say(text)["said"].argmax(-1) for text in _with_mistakes(texts, mistakes)]
        reference = Reference(chosen, {}, _described(_HEAD))
        return reference.judge([{"said": other} for other in others])

    assert (judge(1).passed, judge(1).forgiven) == (True, True)
    assert not judge(2).passed
    assert not _judge(texts, _with_mistakes(texts, 1)).passed, "it was sure, and a line is lost"


def test_samples_without_text_say_nothing() -> None:
    texts = _texts(20)
    agreement = _agreement([*texts, *[[]] * 80], [*_with_mistakes(texts, 2), *[[]] * 80])
    assert agreement.of_characters == pytest.approx(0.99)
    assert agreement.of_lines == pytest.approx(1 - 2 / 20, abs=1e-4)
    assert _judge([[]] * 10, [[]] * 10).metric != "string_agreement"
    read = _agreement([*texts, []], [*texts, [3]])
    assert read.of_characters == pytest.approx(200 / 201)


def test_spaces_at_the_ends_are_no_text() -> None:
    head = TextHead(output="said", blank=0, spaces=(7,))
    assert read_text(head, _say([7, 3, 7, 4, 7])) == (3, 7, 4)
    assert read_text(head, _say([7])) == ()
    assert read_text(_HEAD, _say([7, 3])) == (7, 3), "what is a space is not known"
    texts = [[*text, 7] for text in _texts(20)]
    reference = Reference([_say(text) for text in texts], {}, _described(head))
    ends = reference.judge([_say(text[:-1]) for text in texts])
    assert ends.value == 1.0
    between = [[*text[:5], 7, *text[5:]] for text in texts]
    assert not reference.judge([_say(text) for text in between]).passed


def test_the_distance_of_texts_counts_edits() -> None:
    assert edit_distance((1, 2, 3), (1, 2, 3)) == 0
    assert edit_distance((1, 2, 3), (2, 3)) == 1
    assert edit_distance((), (2, 3)) == 2
    assert edit_distance((1, 2, 3, 4), (1, 3, 2, 4)) == 2
    assert edit_distance((1, 1, 2), (1, 2, 2)) == 1


@pytest.mark.parametrize("blank", [0, _CLASSES - 1])
@pytest.mark.parametrize("turned", [False, True])
def test_the_values_tell_the_blank(blank: int, turned: bool) -> None:
    texts = _texts(8)
    expected = [_say(text, blank, turned=turned) for text in texts]
    settled = settle(TextHead(output="said"), expected)
    assert settled == TextHead(output="said", blank=blank)
    assert [list(read_text(settled, outputs)) for outputs in expected] == texts


def test_what_lasts_or_has_no_blank_is_no_text() -> None:
    rng = np.random.default_rng(1)
    frames = [_rows(np.repeat(rng.integers(0, 3, 8), 5)) for _ in range(8)]
    words = [_rows(rng.integers(0, _CLASSES, _STEPS)) for _ in range(8)]
    unsure = [{"said": np.power(outputs["said"], 0.1)} for outputs in map(_say, _texts(8))]
    for values in (frames, words, unsure, [_say([3, 4, 5])] * 8):
        assert settle(TextHead(output="said"), values) is None


def _rows(best: npt.NDArray[np.int64]) -> Outputs:
    rows = np.full((1, len(best), _CLASSES), 0.001, np.float32)
    rows[0, np.arange(len(best)), best] = 0.981
    return {"said": rows}


def _reader(folder: Path, shape: list[int | str], **metadata: str) -> Path:
    model = graph_model(
        f"(float[1,3,32,160] picture) => (float[{','.join(map(str, shape))}] said) "
        "{ said = Softmax(picture) }"
    )
    helper.set_model_props(model, metadata)
    onnx.save(model, folder / "reader.onnx")
    return folder / "reader.onnx"


def _head(source: SourceModel) -> TextHead | None:
    return _described_head(source.description)


def _described_head(description: ModelDescription) -> TextHead | None:
    part = description.part_of("text")
    return None if part is None else TextHead.of(part)


def test_a_reader_is_told_by_its_output_or_its_list_of_characters(tmp_path: Path) -> None:
    by_values = load_source(_reader(tmp_path, [1, "T", _CLASSES]))
    assert _head(with_heads(by_values, {})) == TextHead(output="said")
    noted = load_source(_reader(tmp_path, [1, "T", 5], character="a\nb\nc"))
    assert _head(with_heads(noted, {})) is None  # five classes are too few
    noted = load_source(_reader(tmp_path, [1, "T", 12], character="\n".join("abcdefghij")))
    head = _head(with_heads(noted, {}))
    assert head == TextHead(output="said", blank=0, spaces=(11,), source="metadata")
    own_space = load_source(_reader(tmp_path, [1, "T", 12], character="a\nb\n \n" + "c\n" * 8))
    found = _head(with_heads(own_space, {}))
    assert found == TextHead(output="said", blank=0, spaces=(3,), source="metadata")
    noted = load_source(_reader(tmp_path, [1, "T", 12], character="\n".join("abcdefghij")))
    open_sizes = load_source(_reader(tmp_path, [-1, -1, 12], character="\n".join("abcdefghij")))
    assert _head(with_heads(open_sizes, {})) == head, "Paddle writes what is open as -1"
    scores = {"said": OutputDeclaration(task="classification")}
    assert _head(with_heads(noted, scores)) is None
    points = load_source(_reader(tmp_path, [1, 4, 40, 40]))
    assert _head(with_heads(points, {})) is None


def test_what_is_declared_to_be_text_and_is_none_is_refused(tmp_path: Path) -> None:
    plain = load_source(_reader(tmp_path, [1, "T", _CLASSES]))
    declared = {"said": OutputDeclaration(task="text")}
    source = with_heads(plain, declared)
    samples = Samples(count=4, read=lambda index: {}, source="")
    words = _rows(np.arange(_CLASSES))
    with pytest.raises(BuildError, match="declared as text, but its values show no blank"):
        describe(source, samples, lambda feeds: words, silent)
    declared = {"said": OutputDeclaration(task="text", blank=7)}
    found = describe(with_heads(plain, declared), samples, lambda feeds: words, silent)
    assert _described_head(found.description) == TextHead(output="said", blank=7, source="declared")
    assert "'said' tells text step by step, with class 7 as the blank (declared" in found.notes[0]


def test_spaces_count_unless_they_are_declared_not_to(tmp_path: Path) -> None:
    noted = load_source(_reader(tmp_path, [1, "T", 12], character="\n".join("abcdefghij")))
    kept = _head(with_heads(noted, {"said": OutputDeclaration(task="text")}))
    assert kept == TextHead(output="said", blank=0, spaces=(11,), source="declared")
    silent_spaces = {"said": OutputDeclaration(task="text", spaces=False)}
    ignored = _head(with_heads(noted, silent_spaces))
    assert ignored is not None
    assert ignored.ignores_spaces
    samples = Samples(count=4, read=lambda index: {}, source="")
    said = _say(_texts(1)[0])
    for declared, words in (({}, "spaces = false if"), (silent_spaces, "Spaces do not count.")):
        found = describe(with_heads(noted, declared), samples, lambda feeds: said, silent)
        assert words in found.notes[0]
    texts = [[*text[:4], 11, *text[5:]] for text in _texts(30)]
    without = [[kind for kind in text if kind != 11] for text in texts]
    for head, value in ((kept, 0.0), (ignored, 1.0)):
        reference = Reference([_say(text) for text in texts], {}, _described(head))
        verdict = reference.judge([_say(text) for text in without])
        assert verdict.value == pytest.approx(value, abs=1e-3)
    assert declared_keys(ignored.part) == {"blank": 0, "spaces": False}
    unnamed = load_source(_reader(tmp_path, [1, "T", 12]))
    with pytest.raises(BuildError, match="no class is known as a space"):
        with_heads(unnamed, silent_spaces)
    named = OutputDeclaration(task="text", spaces=False, class_names=(*"abcdefghij", "", " "))
    found_by_names = _head(with_heads(unnamed, {"said": named}))
    assert found_by_names is not None
    assert (found_by_names.blank, found_by_names.spaces) == (10, (11,))
    characters = TextHead(output="said", spaces=(3,), ignores_spaces=True, source="declared")
    assert read_text(characters, {"said": np.array([1, 3, 2, 3])}) == (1, 2)


def test_a_blank_is_neither_a_character_nor_a_space(tmp_path: Path) -> None:
    noted = load_source(_reader(tmp_path, [1, "T", 12], character="\n".join("abcdefghij")))
    third = {"said": OutputDeclaration(task="text", blank=3)}
    with pytest.raises(BuildError, match="declared as the blank, and is the character 'c'") as told:
        with_heads(noted, third)
    assert "blank = 0" in str(told.value.remedy)
    plain = load_source(_reader(tmp_path, [1, "T", 12]))
    names = (" ", *"abcdefghij", " ")  # the blank named as a space
    named = OutputDeclaration(task="text", blank=0, spaces=False, class_names=names)
    head = _head(with_heads(plain, {"said": named}))
    assert head is not None
    assert head.spaces == (11,)
    texts = [_say(text) for text in _texts(4)]
    reference = Reference(texts, {}, _described(replace(head, spaces=(0, 11))))
    assert 0.0 <= reference.judge([_say(text[:-1]) for text in _texts(4)]).value < 1.0
    samples = Samples(count=4, read=lambda index: {}, source="")
    before = with_heads(plain, {"said": OutputDeclaration(task="text", blank=-1)})
    with pytest.raises(BuildError, match="no class of that number"):
        describe(before, samples, lambda feeds: texts[0], silent)


def _characters(folder: Path) -> SourceModel:
    """Return a model that gives the number of a character for each place."""
    model = graph_model(
        "(float[1,6,12] frames) => (int64[1,6] said)"
        " { said = ArgMax<axis = 2, keepdims = 0>(frames) }"
    )
    onnx.save(model, folder / "characters.onnx")
    return load_source(folder / "characters.onnx")


def test_empty_name_among_whole_numbers_is_no_character(tmp_path: Path) -> None:
    source = _characters(tmp_path)
    named = OutputDeclaration(task="text", class_names=("", *"abcdefghij", " "))
    head = _head(with_heads(source, {"said": named}))
    assert head is not None
    assert (head.blank, head.empty) == (None, (0,))
    said: list[Outputs] = [{"said": np.array([[first, 3, 3, 4, 0, 0]])} for first in (1, 2, 3, 4)]
    assert read_text(head, said[0]) == (1, 3, 3, 4), "equal neighbours are two characters"
    other: list[Outputs] = [{"said": np.array([[first, 3, 3, 5, 0, 0]])} for first in (1, 2, 3, 4)]
    verdict = Reference(said, {}, _described(head)).judge(other)
    assert "Of the 16 characters" in verdict.agreements[0].notes[0]
    assert verdict.value == pytest.approx(0.75)
    samples = Samples(count=4, read=lambda index: {}, source="")
    found = describe(with_heads(source, {"said": named}), samples, lambda feeds: said[0], silent)
    assert "blank = 0" in found.notes[0]
    steps = _head(with_heads(source, {"said": replace(named, blank=0)}))
    assert steps is not None
    assert (steps.blank, steps.empty, read_text(steps, said[0])) == (0, (), (1, 3, 4))


def test_classes_without_a_character_are_no_text(tmp_path: Path) -> None:
    named = {"said": OutputDeclaration(task="text", class_names=("", *" " * 11))}
    for source in (_characters(tmp_path), load_source(_reader(tmp_path, [1, "T", 12]))):
        with pytest.raises(BuildError, match="no class of output 'said' is a character") as told:
            with_heads(source, named)
        assert "class_names" in str(told.value.remedy)
    blanks = load_source(_reader(tmp_path, [1, "T", 12], character="\n".join(" " * 11)))
    assert _head(with_heads(blanks, {})) == TextHead(output="said"), "such metadata lists nothing"


def test_a_reader_that_chooses_classes_itself_is_read_likewise() -> None:
    head = TextHead(output="said", blank=0, source="declared")
    scored = [_say(text) for text in _texts(3)]
    chosen: list[Outputs] = [{"said": outputs["said"].argmax(-1)} for outputs in scored]
    assert settle(head, chosen) == head
    assert [read_text(head, o) for o in chosen] == [read_text(head, o) for o in scored]


def test_clear_classes_without_a_blank_are_asked_for(tmp_path: Path) -> None:
    source = with_heads(load_source(_reader(tmp_path, [1, "T", _CLASSES])), {})
    samples = Samples(count=4, read=lambda index: {}, source="")
    words = _rows(np.arange(2, _CLASSES - 1))
    found = describe(source, samples, lambda feeds: words, silent)
    assert _described_head(found.description) is None
    assert "[outputs.said] with task = 'text' and blank = the number" in found.notes[0]
    unclear: Outputs = {"said": np.full((1, 9, _CLASSES), 1 / _CLASSES, np.float32)}
    assert not describe(source, samples, lambda feeds: unclear, silent).notes


def test_a_text_recognizer_that_people_use_is_told_by_its_characters() -> None:
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("rapidocr_onnxruntime is not installed")
    path = Path(spec.origin).parent / "models" / "ch_PP-OCRv4_rec_infer.onnx"
    source = with_heads(load_source(path, {"x": (1, 3, 48, 320)}), {})
    spaces = (5710, 6624)  # an ideographic one in its list, and the one that the list leaves out
    told = TextHead(output="softmax_11.tmp_0", blank=0, spaces=spaces, source="metadata")
    assert _head(source) == told


def test_what_is_forgiven_is_not_called_sure() -> None:
    shares = np.full((1, 24, 5), 1e-5)
    shares[0, ::2, 1], shares[0, 1::2, 0] = 1.0, 1.0
    shares[0, 4, 1:3] = 0.49, 0.51
    other = shares.copy()
    other[0, 4, 1:3] = 0.51, 0.49
    expected: list[Outputs] = [{"said": shares}] * 15 + [{"said": other}] * 15
    swapped: list[Outputs] = [{"said": other}] * 2 + expected[2:-2] + [{"said": shares}] * 2
    verdict = Reference(expected, {}, _described(_HEAD)).judge(swapped)
    assert verdict.value > 0.998
    assert verdict.bounds[0][0] == pytest.approx(1 - 4 / 360)
    assert verdict.passed
    assert is_doubtful(verdict)
    assert samples_to_prove(verdict, 30) is None, "no number would, if each of them is one"
