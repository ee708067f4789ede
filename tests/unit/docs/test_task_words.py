"""The check that outputs have one vocabulary."""

from pathlib import Path

import pytest
from docs.task_words import CODE, find_faults


def test_outputs_have_one_vocabulary() -> None:
    assert list(find_faults()) == []


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        ('KINDS = ("depth", "sound", "text", "saliency")', ["saliency"]),
        ('Kind = Literal["depth", "sound", "text", "pose", "flow"]', ["flow, pose"]),
        ('NAMES = {"depth": 1, "sound": 2, "text": 3, "saliency": 4}', ["saliency"]),
        (
            'class Kind(Enum):\n    A = "depth"\n    B = "sound"\n    C = "text"\n    D = "pose"',
            ["pose"],
        ),
        ('class Meaning:\n    """Meaning."""', ["Meaning"]),
        ('KINDS = ("depth", "sound", "text")', []),
        ('WORDS = ("depth", "width", "height")', []),
    ],
)
def test_a_planted_word_is_found(planted: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / CODE[0] / "planted.py"
    file.parent.mkdir(parents=True)
    file.write_text(planted)
    found = list(find_faults(tmp_path))
    assert len(found) == len(words)
    assert all(word in fault for word, fault in zip(words, found, strict=True))
