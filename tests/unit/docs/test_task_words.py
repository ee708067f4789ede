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
        ('KIND_OF = {1: "depth", 2: "sound", 3: "text", 4: "saliency"}', ["saliency"]),
        ('KIND_OF = [("depth", 1), ("sound", 2), ("text", 3), ("pose", 4)]', ["pose"]),
        ("KIND_OF = dict(depth=1, sound=2, text=3, pose=4)", ["pose"]),
        ('KINDS = "depth sound text pose".split()', ["pose"]),
        (
            "class Kind(Enum):\n    DEPTH = auto()\n    SOUND = auto()\n    TEXT = auto()\n"
            "    POSE = auto()",
            ["pose"],
        ),
        ("from kinds import Meaning as Sense", ["Meaning"]),
        ("class Gate(Struct):\n    top1_min: float = 0.5", ["top1_min"]),
        ('BUDGETS = {"map_min": 0.5}', ["map_min"]),
        ("Head = Boxes | Scores", ["Head"]),
        ("class Head:\n    cosine_min: float = 0.5", []),
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
