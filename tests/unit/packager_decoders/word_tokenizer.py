"""A tokenizer for the drawn decoder: a word for each token."""

from pathlib import Path

from tests.unit.packager_decoders.drawn_decoder import WORDS


def words_of(count: int = WORDS) -> list[str]:
    """Return the words: w0, w1 …, and the roles of a chat."""
    return [*(f"w{number}" for number in range(count - 2)), "user", "assistant"]


def write_tokenizer(folder: Path, count: int = WORDS) -> None:
    """Write `tokenizer.json` into a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    numbers = {word: number for number, word in enumerate(words_of(count))}
    made = Tokenizer(models.WordLevel(numbers, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
