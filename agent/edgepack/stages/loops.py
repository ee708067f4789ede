"""Decoders of a pipeline that are run again and again, a token at a time."""

from typing import Annotated, Literal

import msgspec

MAX_TENSOR = 200
MAX_STATES = 1024
MAX_BEAMS = 16

TensorName = Annotated[
    str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f]+\Z", max_length=MAX_TENSOR)
]
StageName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9_-]{0,39}\Z")]
TokenNumber = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Tokens = Annotated[tuple[TokenNumber, ...], msgspec.Meta(max_length=1024)]
_Words = Annotated[tuple[TokenNumber, ...], msgspec.Meta(min_length=1, max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=4096)]
_States = Annotated[dict[TensorName, TensorName], msgspec.Meta(min_length=1, max_length=MAX_STATES)]


class Cache(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Graph that continues a text by one token, from what earlier inferences computed.

    Attributes:
        stage: Its stage, which has no outputs: it runs only in the loop.
        first: By input of the graph the output of the decoder that is its first value.
        next: By input of the graph its own output that is the next value; an input that is not
            named keeps its first value.
    """

    stage: StageName
    first: _States
    next: _States


class Loop(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Repetition of a decoder: each run adds a token, until the text ends.

    With one beam, the likeliest token is added. With more, the texts with the highest likelihood
    are kept at each step (beam search), and the best text that ended is the result. All rules are
    those of `generate` in transformers.

    Attributes:
        tokens: Input int64 (texts, tokens) of the graph: all tokens so far, or with a cache the
            tokens that are new.
        start: Tokens that a text begins with.
        written: Of `start`, the last tokens count as added (`forced_bos_token_id`).
        choices: Tokens such as languages: the likeliest of these follows the first token of
            `start`. Empty for none.
        end: Tokens that end a text.
        least, most: Tokens that are added at least before the end, and at most.
        last: Token that is added last where the text is cut at `most`; None for any.
        suppress: Tokens that are never added.
        suppress_first: Tokens that are not added first.
        suppress_texts: Sequences of tokens that are never completed (`bad_words_ids`).
        no_repeat: Sequences of this length occur once at most (`no_repeat_ngram_size`); 0 for no
            such rule.
        repetition_penalty: Divides scores of tokens that are in the text.
        beams: Texts that are followed at a time.
        length_penalty: Exponent of the length by which a text's log likelihood is divided.
        early_stopping: True to end as soon as `beams` texts ended; False to end when no running
            text is likely to become better; "never" to end when none can.
        cache: Graph that continues; None to compute all tokens again for each new one.
    """

    tokens: TensorName
    start: _Words
    written: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    choices: _Tokens = ()
    end: Annotated[tuple[TokenNumber, ...], msgspec.Meta(min_length=1, max_length=16)]
    least: _Count = 0
    most: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    last: TokenNumber | None = None
    suppress: _Tokens = ()
    suppress_first: _Tokens = ()
    suppress_texts: Annotated[tuple[_Words, ...], msgspec.Meta(max_length=1024)] = ()
    no_repeat: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=100)] = 1.0
    beams: Annotated[int, msgspec.Meta(ge=1, le=MAX_BEAMS)] = 1
    length_penalty: Annotated[float, msgspec.Meta(ge=-10, le=10)] = 1.0
    early_stopping: bool | Literal["never"] = False
    cache: Cache | None = None
