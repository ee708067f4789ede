"""Meaning of a model's inputs: what becomes of a picture, and which tokens there are.

The build writes what it prepared its samples with, and a device prepares pictures in the same way.
"""

import math
from typing import Annotated, Literal

import msgspec

MAX_NAME = 1_000
MAX_INPUT_PIXELS = 2**26
"""Pixels of an input picture, at most: 800 MB of float32."""

MAX_CHANNELS = 3

Layout = Literal["NCHW", "NHWC"]
Color = Literal["RGB", "BGR", "GRAY"]
Resize = Literal["stretch", "letterbox", "crop", "short_side"]
Filter = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Pooling = Literal["none", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
PictureDtype = Literal["uint8", "float16", "float32", "float64"]

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
_Side = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
_Number = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Channels = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1, max_length=MAX_CHANNELS)]


class _Described(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"
):
    """Base of all inputs: its name."""

    name: _Name


class PictureInput(_Described, frozen=True, kw_only=True, tag="image"):
    """Input that takes a picture: a pixel p, 0 … 255, of channel c becomes
    `(p * scale - mean[c]) / std[c]`.

    Attributes:
        name: Name of the input.
        layout: Order of the axes.
        color: Order of the channels.
        height, width: Size in pixels.
        resize: `stretch` ignores the aspect, `letterbox` keeps the aspect and pads with `pad`,
            `crop` cuts the middle out in the aspect of the input, `short_side` brings the shorter
            side to `short_side` pixels and cuts the middle out.
        short_side: See `resize`. With `stretch`, the picture is stretched to this shorter side in
            the aspect of the input, and the middle is cut out; 0 stretches to the input's size.
        filter: Filter of the resizing, by Pillow's names.
        pad: Value of the padding, 0 … 255.
        scale, mean, std: See above; mean and std have a single value or a value per channel.
            Unused for an input of uint8, which takes pixels unchanged.
        dtype: Element type.
        batch: Pictures that the model takes at once; 0 for any number.
        is_checked: Whether the build prepared its samples so, from pictures; else a person only
            declared the preparation.
    """

    layout: Layout
    color: Color
    height: _Side
    width: _Side
    resize: Resize
    short_side: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 0
    filter: Filter
    pad: Annotated[int, msgspec.Meta(ge=0, le=255)]
    scale: _Number
    mean: _Channels
    std: _Channels
    dtype: PictureDtype
    batch: Annotated[int, msgspec.Meta(ge=0, le=2**16)] = 1
    is_checked: bool = True

    def __post_init__(self) -> None:
        """Reject values that contradict each other.

        Raises:
            ValueError: The numbers do not fit each other; a decoder raises its own error of this.
        """
        if self.height * self.width > MAX_INPUT_PIXELS:
            raise ValueError(f"a picture input has more than {MAX_INPUT_PIXELS} pixels")
        if {len(self.mean), len(self.std)} - {1, self.channels}:
            raise ValueError(f"mean and std have 1 value or {self.channels}")
        if not all(map(math.isfinite, (self.scale, *self.mean, *self.std))) or 0.0 in self.std:
            raise ValueError("scale, mean and std are finite, and no std is 0")
        sides = (self.height, self.width)
        least = {"short_side": max(sides), "stretch": min(sides)}.get(self.resize, math.inf)
        if (self.short_side or self.resize == "short_side") and self.short_side < least:
            raise ValueError(
                "short_side is at least the size of the input, and only for stretch and short_side"
            )

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.color == "GRAY" else MAX_CHANNELS

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        mean, std = (", ".join(f"{it:.4g}" for it in values) for values in (self.mean, self.std))
        how = f" {self.short_side}" if self.short_side else ""
        how += f" with {self.pad}" if self.resize == "letterbox" else ""
        values = f"(pixel * {self.scale:.6g} - [{mean}]) / [{std}]"
        return (
            f"image, {self.layout} {self.color}, resize {self.resize}{how} ({self.filter}) to "
            f"{self.height} x {self.width}, {'pixel' if self.dtype == 'uint8' else values}, "
            f"{self.dtype}"
        )


class TokenInput(_Described, frozen=True, kw_only=True, tag="tokens"):
    """Input that takes tokens.

    Attributes:
        name: Name of the input.
        vocabulary: Number of tokens: each is below this number.
    """

    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**53)]

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        return f"tokens, whole numbers from 0 to {self.vocabulary - 1}"


class PageInput(_Described, frozen=True, kw_only=True, tag="page"):
    """Input that takes a picture of any size: uint8 pixels (1, height, width, 3), red first.

    Attributes:
        name: Name of the input.
    """

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        return "image of any size, NHWC RGB, uint8"


class TextInput(_Described, frozen=True, kw_only=True, tag="text"):
    """Input of tokens that a device makes from a text, for a vector of the text.

    Attributes:
        name: Name of the input of tokens, (1, tokens).
        mask, types: Names of the inputs of the mask and of the token types; "" without.
        vocabulary: Number of tokens: each is below this number.
        max_tokens: Tokens of a text with its special tokens, at most.
        pad: Token that fills an input of fixed length.
        prefix: Text before each text.
        output: Output that the vector is made from.
        pooling: How a vector for each token becomes one, by sentence-transformers' names; `none`
            for an output with a vector for each text.
        normalize: Whether the vector gets length 1.
        dimensions: Values of the vector.
    """

    mask: _Name = ""
    types: _Name = ""
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    pad: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    prefix: _Name = ""
    output: _Name
    pooling: Pooling
    normalize: bool = False
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**20)]

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        made = "" if self.pooling == "none" else f", pooling {self.pooling}"
        before = f" behind {self.prefix!a}" if self.prefix else ""
        return (
            f"text of at most {self.max_tokens} tokens{before}, for a vector of {self.dimensions} "
            f"values from {self.output}{made}{', length 1' if self.normalize else ''}"
        )


class SoundInput(_Described, frozen=True, kw_only=True, tag="sound"):
    """Input of log-mel features that a device makes from a sound, for its text.

    Attributes:
        name: Name of the input of features, float32 (1, mels, frames).
        rate: Samples per second that the features are made from.
        samples: Samples of a chunk; a shorter one is filled with silence.
        fft: Samples of a window.
        hop: Samples between two windows.
        mels: Filters.
        output: Output with the tokens of the text.
        vocabulary: Number of tokens: each is below this number.
        timestamps: First token that is a time, not text; 0 without such tokens.
        tidy: Whether spaces before signs are removed from the text.
    """

    rate: Annotated[int, msgspec.Meta(ge=4_000, le=192_000)]
    samples: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    fft: Annotated[int, msgspec.Meta(ge=2, le=2**14)]
    hop: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    mels: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    output: _Name
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    timestamps: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 0
    tidy: bool = False

    def __post_init__(self) -> None:
        """Reject values that contradict each other, or whose features take too much memory.

        Raises:
            ValueError: The numbers do not fit each other; a decoder raises its own error of this.
        """
        if self.samples <= self.fft:
            raise ValueError("a chunk has more samples than a window")
        if self.frames * max(self.fft, self.mels) > MAX_INPUT_PIXELS:
            raise ValueError(f"the windows of a chunk have more than {MAX_INPUT_PIXELS} values")

    @property
    def frames(self) -> int:
        """Features of a chunk, by time."""
        return self.samples // self.hop

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        return (
            f"sound at {self.rate} Hz, in chunks of {self.samples / self.rate:g} s, as "
            f"{self.mels} log-mel features of {self.fft} samples every {self.hop}, for the text "
            f"of {self.output}"
        )


class PromptInput(_Described, frozen=True, kw_only=True, tag="prompt"):
    """Input of tokens that a device makes from a text, for another text: of an encoder-decoder.

    Attributes:
        name: Name of the input of tokens, (1, tokens).
        mask: Name of the input of the mask; "" without.
        max_tokens: Tokens of a text with its special tokens, at most.
        output: Output with the tokens of the other text.
        vocabulary: Number of tokens: each is below this number.
    """

    mask: _Name = ""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    output: _Name
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**24)]

    @property
    def words(self) -> str:
        """Description for a person, a line."""
        return f"text of at most {self.max_tokens} tokens, for the text of {self.output}"


DescribedInput = PictureInput | PageInput | TokenInput | TextInput | SoundInput | PromptInput
