"""Recognition of decoders, the successor of each input, and questions to the user."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.errors import BuildError
from edgepack.packager.config.inputs import WantedInputs
from edgepack.packager.config.outputs import OutputDeclaration
from edgepack.packager.progress import silent
from edgepack.packager.samples.decoders import follow_tokens
from edgepack.packager.samples.files import OpenedSamples, open_samples
from edgepack.packager.source.model import load_source
from edgepack.packager.tensors.decoders import Cache, Decoder
from edgepack.packager.tensors.sequence import Feeds
from tests.graphs import graph_model
from tests.unit.packager_decoders.drawn_decoder import draw_decoder, prompts, without_caches

_WORDS, _WIDTH = 24, 8


def _model(text: str) -> onnx.ModelProto:
    """Return a model from its inputs, outputs and nodes; weights `words` and `to_scores`."""
    rng = np.random.default_rng(0)
    shapes = {"words": (_WORDS, _WIDTH), "to_scores": (_WIDTH, _WORDS)}
    drawn = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return graph_model(text, {name: value.astype(np.float32) for name, value in drawn.items()})


def _follow(
    model: onnx.ModelProto, feeds: Feeds, folder: Path, **outputs: OutputDeclaration
) -> OpenedSamples:
    onnx.save(model, folder / "model.onnx")
    (folder / "samples").mkdir()
    np.savez(folder / "samples" / "0.npz", **feeds)  # type: ignore[arg-type]
    source = load_source(folder / "model.onnx")
    opened = open_samples(str(folder / "samples"), WantedInputs(specs=source.inputs), silent)
    return follow_tokens(opened, source, {}, outputs)


def test_a_decoder_is_told_by_its_tables_and_its_caches(tmp_path: Path) -> None:
    followed = _follow(draw_decoder(), prompts(1)[0], tmp_path)
    assert followed.samples.decoder == Decoder(
        tokens="input_ids",
        scores="logits",
        caches=tuple(
            Cache(input=f"past_key_values.{cache}", output=f"present.{cache}", axis=2)
            for cache in ("0.key", "0.value", "1.key", "1.value")
        ),
        rules={"attention_mask": "mask", "position_ids": "positions"},
        rows={"position_ids": 256},
    )
    assert followed.notes[-1].startswith("A decoder: 'input_ids' takes tokens")


def test_a_decoder_without_a_cache_reads_the_text_again(tmp_path: Path) -> None:
    feeds = {name: v for name, v in prompts(1)[0].items() if not name.startswith("past")}
    followed = _follow(without_caches(draw_decoder()), feeds, tmp_path)
    decoder = followed.samples.decoder
    assert decoder is not None
    assert (decoder.tokens, decoder.scores, decoder.caches) == ("input_ids", "logits", ())
    assert "which reads the text again" in " ".join(followed.notes).replace("each of ", "")


def test_a_model_that_fills_gaps_is_no_decoder(tmp_path: Path) -> None:
    feeds = {name: v for name, v in prompts(1)[0].items() if not name.startswith("past")}
    followed = _follow(without_caches(draw_decoder(), backwards=True), feeds, tmp_path)
    assert followed.samples.decoder is None
    assert "decoder" not in " ".join(followed.notes)


_RECURRENT = """(int64[1,1] token, float[1,1,8] h0) => (float[1,1,24] scores, float[1,1,8] hn) {
word = Gather(words, token) sum = Add(word, h0) hn = Tanh(sum) scores = MatMul(hn, to_scores) }"""


def test_a_recurrent_network_that_says_words_is_a_decoder(tmp_path: Path) -> None:
    feeds = {"token": np.array([[3]]), "h0": np.zeros((1, 1, _WIDTH), np.float32)}
    followed = _follow(_model(_RECURRENT), feeds, tmp_path)
    assert followed.samples.decoder == Decoder(
        tokens="token", scores="scores", caches=(Cache(input="h0", output="hn"),), rules={}
    )


_WITH_COUNTS = """
(int64[1,S] ids, int64 past_len, bool use_cache, float[1,E,8] seen, int64[1,E] encoder_mask,
 float[1,P,8] past_kv) => (float[1,S,24] scores, float[1,T,8] present_kv) {
word = Gather(words, ids) present_kv = Concat<axis=1>(past_kv, word)
mean = ReduceMean<axes=[1], keepdims=1>(present_kv) there = ReduceMean<axes=[1], keepdims=1>(seen)
at = Cast<to=1>(past_len) on = Cast<to=1>(use_cache) of = Cast<to=1>(encoder_mask)
some = ReduceMean<keepdims=0>(of) a = Add(word, mean) b = Add(a, there) c = Add(b, at)
d = Add(c, on) e = Add(d, some) scores = MatMul(e, to_scores) }"""


def test_lengths_flags_and_what_an_encoder_saw_each_go_on_in_their_way(tmp_path: Path) -> None:
    feeds: Feeds = {
        "ids": np.array([[3, 4, 5]]),
        "past_len": np.array(0),
        "use_cache": np.array(False),
        "seen": np.ones((1, 3, _WIDTH), np.float32),
        "encoder_mask": np.ones((1, 3), np.int64),
        "past_kv": np.zeros((1, 0, _WIDTH), np.float32),
    }
    decoder = _follow(_model(_WITH_COUNTS), feeds, tmp_path).samples.decoder
    assert decoder is not None
    assert decoder.rules == {
        "past_len": "past_length",
        "use_cache": "cache_flag",
        "seen": "same",
        "encoder_mask": "same",
    }


_UNTOLD = """(float[1,S,8] a, float[1,P,8] past_kv) => (float[1,S,24] b, float[1,T,8] present_kv) {
present_kv = Concat<axis=1>(past_kv, a) mean = ReduceMean<axes=[1], keepdims=1>(present_kv)
c = Add(a, mean) b = MatMul(c, to_scores) }"""


def test_a_cache_without_tokens_is_asked_about(tmp_path: Path) -> None:
    feeds: Feeds = {
        "a": np.ones((1, 2, _WIDTH), np.float32),
        "past_kv": np.ones((1, 3, _WIDTH), np.float32),
    }
    followed = _follow(_model(_UNTOLD), feeds, tmp_path)
    assert followed.samples.decoder is None
    assert (
        "'past_kv' is a cache that grows with each step, and nothing tells which input takes"
        in (followed.notes[-1])
    )
    assert "[outputs.NAME] with task = 'tokens' and tokens = 'INPUT'" in followed.notes[-1]


_TWO = """(int64[1,S] a, int64[1,S] b, float[1,P,8] past_kv) =>
(float[1,S,24] c, float[1,T,8] present_kv) {
first = Gather(words, a) second = Gather(words, b) word = Add(first, second)
present_kv = Concat<axis=1>(past_kv, word) mean = ReduceMean<axes=[1], keepdims=1>(present_kv)
d = Add(word, mean) c = MatMul(d, to_scores) }"""


def test_what_two_inputs_may_be_a_person_says(tmp_path: Path) -> None:
    feeds: Feeds = {
        "a": np.array([[3, 9]]),
        "b": np.array([[4, 4]]),
        "past_kv": np.ones((1, 3, _WIDTH), np.float32),
    }
    (tmp_path / "told").mkdir()
    assert _follow(_model(_TWO), feeds, tmp_path).samples.decoder is None
    said = OutputDeclaration(task="tokens", tokens="b")
    decoder = _follow(_model(_TWO), feeds, tmp_path / "told", c=said).samples.decoder
    assert decoder is not None
    assert (decoder.tokens, decoder.scores) == ("b", "c")
    assert decoder.rules == {"a": "as_long"}


def test_what_is_declared_and_is_no_decoder_is_refused(tmp_path: Path) -> None:
    said = OutputDeclaration(task="tokens", tokens="h0")
    feeds = {"token": np.array([[3]]), "h0": np.zeros((1, 1, _WIDTH), np.float32)}
    with pytest.raises(BuildError) as refused:
        _follow(_model(_RECURRENT), feeds, tmp_path, scores=said)
    assert "'scores' is declared to score tokens, and nothing tells which input takes tokens" in (
        refused.value.problem
    )


def test_tokens_of_a_model_that_takes_nothing_back_are_compared_as_given(tmp_path: Path) -> None:
    text = """(int64[1, 4] token) => (float[1, 4, 24] scores) {
        word = Gather(words, token) scores = MatMul(word, to_scores) }"""
    said = OutputDeclaration(task="tokens", tokens="token")
    opened = _follow(_model(text), {"token": np.array([[3, 1, 4, 1]])}, tmp_path, scores=said)
    assert opened.samples.decoder is None
    assert any("'scores'" in note and "no chain" in note for note in opened.notes)


@pytest.mark.parametrize("size", ["6", "source_length"])
def test_a_source_stays_as_long_as_it_is_whatever_the_length_of_the_prefix(
    tmp_path: Path, size: str
) -> None:
    text = f"""(int64[1, {size}] source, int64[1, n] token) => (float[1, n, 24] scores) {{
        read = Gather(words, source) context = ReduceMean<axes = [1], keepdims = 1>(read)
        word = Gather(words, token) axis = Constant<value = int64[1] {{1}}>()
        heard = CumSum(word, axis) both = Add(heard, context) bound = Tanh(both)
        scores = MatMul(bound, to_scores) }}"""
    for length in (2, 6):
        folder = tmp_path / str(length)
        folder.mkdir()
        feeds = {"source": np.array([[3, 1, 4, 1, 5, 9]]), "token": np.arange(length)[None]}
        said = OutputDeclaration(task="tokens", tokens="token")
        decoder = _follow(_model(text), feeds, folder, scores=said).samples.decoder
        assert decoder is not None
        assert decoder.rules == {"source": "same"}


def test_a_step_that_does_not_fit_the_inputs_is_a_reason_and_not_a_traceback(
    tmp_path: Path,
) -> None:
    text = """(int64[1, 4] seen_mask, int64[1, n] token, float[1, p, 8] past) => (
        float[1, n, 24] scores, float[1, q, 8] present) {
        word = Gather(words, token) present = Concat<axis = 1>(past, word)
        context = ReduceMean<axes = [1], keepdims = 1>(present)
        cast = Cast<to = 1>(seen_mask) total = ReduceMean<axes = [1], keepdims = 1>(cast)
        scaled = Mul(context, total) both = Add(word, scaled) scores = MatMul(both, to_scores) }"""
    feeds = {
        "seen_mask": np.ones((1, 4), np.int64),
        "token": np.array([[3, 1, 4, 1]]),
        "past": np.zeros((1, 0, 8), np.float32),
    }
    opened = _follow(_model(text), feeds, tmp_path)
    assert opened.samples.decoder is None
    (note,) = [note for note in opened.notes if "'past' is a cache" in note]
    assert "'seen_mask' has shape [1, 5], expected [1, 4]" in note
