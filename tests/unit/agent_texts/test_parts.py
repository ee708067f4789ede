"""Sampling, incremental text, wiring: the parts of a text that need no model."""

import json

import numpy as np
import pytest

from edgepack.agent.generation.sampling import Sampler, Sampling, _keep_likeliest, choose_sampling
from edgepack.agent.generation.tokenizing import TextStream, TextTokenizer
from edgepack.agent.generation.wiring import SamplingDefaults, read_wiring
from edgepack.errors import BundleError, DeviceError
from tests.simulators.text_bundles import END, VOCABULARY, encode, make_config, make_tokenizer

LOGITS = np.array([0.1, 2.0, 1.0, -np.inf, 1.5], np.float32)
DEFAULTS = SamplingDefaults()


def _draws(count: int = 2000, **changes: float) -> list[int]:
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3} | changes
    sampler = Sampler(Sampling(**settings))  # type: ignore[arg-type]
    return [sampler.pick(LOGITS) for _ in range(count)]


def test_draws_follow_the_probabilities_and_the_seed() -> None:
    drawn = _draws(20_000)
    shares = np.bincount(drawn, minlength=5) / len(drawn)
    expected = np.exp(LOGITS - LOGITS.max())
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.015)
    assert _draws() == _draws()
    assert _draws() != _draws(seed=4)


def test_settings_narrow_the_tokens() -> None:
    assert set(_draws(temperature=0)) == {1}
    assert set(_draws(top_k=1)) == {1}
    assert set(_draws(top_k=2)) == {1, 4}
    assert set(_draws(top_p=0.45)) == {1}  # 0.50 of all
    assert set(_draws(top_p=0.6)) == {1, 4}
    assert set(_draws(temperature=0.01)) == {1}
    assert 3 not in _draws(temperature=100)


def test_tokens_of_the_text_are_made_less_likely_as_in_transformers() -> None:
    settings = Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0, repetition_penalty=1.5)
    sampler = Sampler(settings, prompt=[1])
    logits = np.array([0.1, 2.0, 1.0, -1.0, 1.5], np.float32)
    assert [sampler.pick(logits) for _ in range(4)] == [4, 1, 1, 1]
    negative = np.array([-1.0, -1.2], np.float32)
    sampler = Sampler(settings, prompt=[0])
    assert sampler.pick(negative) == 1
    assert negative.tolist() == pytest.approx([-1.0, -1.2])


def test_large_vocabularies_keep_the_same_tokens() -> None:
    shares = np.random.default_rng(0).random(5000) ** 8
    order = np.argsort(-shares, kind="stable")
    for top_p in (0.1, 0.5, 0.9, 0.99999):
        count = int(np.searchsorted(np.cumsum(shares[order]), top_p * shares.sum())) + 1
        np.testing.assert_array_equal(_keep_likeliest(shares, top_p), order[:count])


def test_model_gives_defaults_and_bad_settings_are_errors() -> None:
    none = {"temperature": None, "top_k": None, "top_p": None, "seed": None}
    assert choose_sampling(DEFAULTS, **none).temperature == 0
    own = SamplingDefaults(do_sample=True, temperature=0.7, top_k=40, top_p=0.9)
    found = choose_sampling(own, **none)
    assert (found.temperature, found.top_k, found.top_p) == (0.7, 40, 0.9)
    for name, value in (("temperature", -1), ("temperature", float("nan")), ("top_k", -1),
                        ("top_p", 0.0), ("top_p", 1.1), ("seed", -1)):  # fmt: skip
        with pytest.raises(ValueError, match=f"{name} is "):
            choose_sampling(DEFAULTS, **(none | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    logits = LOGITS.copy()
    logits[2] = value
    with pytest.raises(DeviceError, match="no finite logits"):
        Sampler(Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=0)).pick(logits)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(make_tokenizer().encode(), VOCABULARY)


@pytest.mark.parametrize(
    "text", ["plain", "späte Größe", "日本語 🎉 a", "\ufffd in it", "a\n\tb  "]
)
def test_pieces_are_whole_characters_and_add_up(tokenizer: TextTokenizer, text: str) -> None:
    stream = TextStream(tokenizer)
    pieces = [stream.add(token) for token in encode(text)]
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
    assert "".join(pieces) + stream.end() == text
    assert tokenizer.decode(encode(text)) == text


def test_bytes_that_are_no_character_come_in_the_end(tokenizer: TextTokenizer) -> None:
    stream = TextStream(tokenizer)
    broken = [*encode("a"), 0xF0, 0x9F]
    pieces = [stream.add(token) for token in broken]
    assert pieces == ["a", "", ""]
    assert stream.end() == "\ufffd"
    stream = TextStream(tokenizer)
    many = "".join(stream.add(0xFF) for _ in range(100)) + stream.end()
    assert many == "\ufffd" * 100


def test_stop_strings_end_the_text_and_are_held_back(tokenizer: TextTokenizer) -> None:
    stream = TextStream(tokenizer, ("STOP", "OPS"))
    pieces = [stream.add(token) for token in encode("a ST OP STOPS")]
    assert "".join(pieces) == "a ST OP "
    assert stream.is_stopped
    assert stream.end() == ""
    stream = TextStream(tokenizer, ("STOP",))
    assert "".join(stream.add(token) for token in encode("a STO")) == "a "
    assert stream.end() == "STO"


def test_prompts_and_tokenizers_that_do_not_fit_are_errors_with_numbers(
    tokenizer: TextTokenizer,
) -> None:
    assert tokenizer.encode("<|end|>a", context=9, is_whole=True) == [END, 97]
    with pytest.raises(ValueError, match=r"the prompt has 9 tokens, the model's context is 9"):
        tokenizer.encode("a" * 9, context=9, is_whole=True)
    with pytest.raises(ValueError, match="the prompt has 901 characters"):
        tokenizer.encode("a" * 901, context=9, is_whole=True)
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        tokenizer.encode("", context=9, is_whole=True)
    with pytest.raises(BundleError, match="has 259 tokens up to 258, the model 258"):
        TextTokenizer(make_tokenizer().encode(), VOCABULARY - 1)
    with pytest.raises(BundleError, match="the tokenizer cannot be read"):
        TextTokenizer(b'{"model": {"type": "BPE"}}', VOCABULARY)


def test_wiring_is_read_and_hostile_values_are_errors() -> None:
    wiring = read_wiring(make_config().encode())
    assert wiring.cache_names[:2] == [
        ("past_key_values.0.key", "present.0.key"),
        ("past_key_values.0.value", "present.0.value"),
    ]
    assert wiring.end_tokens == (END,)
    for changes, problem in (
        ({"context_length": 0}, ">= 1"),
        ({"context_length": "9"}, "Expected `int`"),
        ({"eos_token_id": VOCABULARY}, "is not in the vocabulary"),
        ({"decoder": {"num_hidden_layers": 10**9}}, "<= 4096"),
        ({"decoder": {}}, "missing"),
    ):
        with pytest.raises(BundleError, match=problem):
            read_wiring(make_config(**changes).encode())
    for content in (b"", b"[]", b"{" * 100_000, json.dumps({"model": 1}).encode()):
        with pytest.raises(BundleError):
            read_wiring(content)
