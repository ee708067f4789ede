"""Measure how plain the project's English is; exit with 1 if a share exceeds its limit.

    python docs/plain_words.py [--list MEASURE [PATH]]

Read docstrings, error messages, other messages (help, log, templates), pages and commit subjects.
`CONTRIBUTING.md` states the rules; `LIMITS` states how many exceptions are tolerated.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = (
    *("agent", "fleet", "packager", "profiles", "firmware_hooks"),
    *("benchmarks", "examples"),
)
"""Folders whose docstrings and messages are measured."""
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
NOT_PAGES = ("docs/reference/commands.md", "docs/benchmarks", "docs/appendix")
"""Pages that programs write, and notes that keep the words of their time."""
SINCE = "2026-11-24T17:20:00+00:00"
"""Commits before this date are not measured."""
FEWEST_COMMITS = 20
"""Fewer commits (a shallow clone) are not measured: a single subject would decide."""
LONG_SENTENCE = 30  # words
LONG_SUBJECT = 72  # characters


LIMITS = {
    "docstring opens with a question word": 0,
    "function opens without a verb": 20,
    "class or module opens without a noun": 3,
    "relative words in docstrings": 0.3,
    "pointing words in docstrings": 1.2,
    "odd phrases in docstrings": 0.5,
    "odd phrases in errors": 1,
    "odd phrases in other messages": 1,
    "odd phrases in pages": 1,
    "relative words in pages": 0.3,
    "pointing words in pages": 1.2,
    "long sentences in pages": 4,
    "long commit subjects": 5,
    "commit subjects that are not imperative": 25,
    "commit subjects without a scope": 25,
}
"""Tolerated share of exceptions by measure, per cent."""


def _group(words: str) -> frozenset[str]:
    return frozenset(words.split())


QUESTION_WORDS = _group(
    "what whatever whether how where who whom whose whoever which whichever why when that"
)
VAGUE_WORDS = QUESTION_WORDS | _group(
    "it its they their this those these one other others all some something somebody"
)
RELATIVE_WORDS = _group("what whatever who whom whose whoever whichever")
POINTING_WORDS = _group("it they them those one ones others such")

ODD_PHRASES = {
    r"(?<!there )\b(?:is|are) no\b(?! longer)": "is not a",
    r"\bcomes? to\b|\bcame (?:to|of)\b": "result in",
    r"\blets? pass\b": "threshold",
    r"\btold\b": "reported",
    r"\bbeside\b": "next to, in the background",
    r"\banew\b": "again",
    r"\bin vain\b": "without success",
    r"\bno more\b(?! than)": "no longer",
    r"\bwhoever\b": "the caller",
    r"\bas it (?:is|came)\b": "unchanged",
    r"\bgo(?:es)? on\b": "continue",
    r"\bnothing (?:tells|says)\b": "is unknown",
}
"""Phrases that a translation leaves behind, and the field's words."""
_ODD = re.compile("|".join(ODD_PHRASES), re.IGNORECASE)

VERBS = _group(
    """accept acknowledge acquire activate add adjust align allocate allow announce answer append
    apply ask assemble assign attach avoid await balance begin bind block bound break build bump
    cache calculate calibrate call cancel capture change check choose claim clamp clean clear
    clip close collect combine commit compare compile complete compose compress compute
    configure confirm connect construct consume continue convert copy correct count cover create
    cut deactivate decide declare decode decrypt delay delete deliver deny derive describe
    deserialize detach detect determine disable discard disconnect display distribute divide do
    doubt download draw drop dump emit empty enable encode encrypt end enforce enrol enroll
    ensure enter escape estimate evaluate exclude execute exit expand expect expire explain
    export expose extend extract fail fetch fill filter find finish fit fix flag flatten flush
    fold follow forget fork format forward free freeze fuse gather generate get give group halt
    handle hash hide hold identify ignore implement import include increase index infer
    initialize insert inspect install interpolate interpret interrupt invalidate invert issue
    iterate join judge keep kill label lead leave let limit link list listen load locate lock
    log look lower make map mark mask match measure merge migrate mount move multiply name
    narrow negotiate normalize note notify number observe obtain offer omit open order output
    override own pack pad parse pass patch pause perform permute pick place plan plot poll pop
    populate post predict prefer prepare present preserve prevent print probe process produce
    project promote prompt propagate propose protect prove provide prune publish pull push put
    quantize query queue quote raise rank read rebuild recall receive recognize recompute
    reconnect reconsider record recover redirect reduce refactor refer refresh register reject
    release remember remove rename render renew renumber reopen repack repair repeat replace
    replay report represent request require reserve reset reshape resize resolve respond restart
    restore restrict resume retain retrieve retry return reuse revert revoke rewind rewrite roll
    rotate round route run sample save scale scan schedule score scrape scrub search seek select
    send separate serialize serve set settle share shift shorten show shrink shut sign simplify
    simulate size skip sleep slice smooth solve sort spare specify split spread stack stage
    start state stop store stream strip submit subscribe substitute subtract suggest sum
    summarize support suspend swap switch synchronize tag take terminate test throttle tighten
    time track train transfer transform translate transpose trim truncate try turn undo unfold
    unlink unlock unpack unquote unregister update upgrade upload use validate verify visit wait
    wake walk warn watch weigh withdraw word wrap write yield zip"""
)
_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")


class Finding(NamedTuple):
    """One measured item: the measure, exceptions found, items counted, place and text."""

    measure: str
    exceptions: int
    items: int
    place: str
    text: str


def findings(root: Path) -> Iterator[Finding]:
    """Measure all texts below the folder of a checkout."""
    for folder in CODE:
        for path in sorted((root / folder).rglob("*.py")):
            yield from of_code(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
        for path in sorted((root / folder).rglob("*.html.jinja")):
            text = re.sub(r"\{[{%#].*?[}%#]\}|<[^>]+>", " ", path.read_text(encoding="utf-8"))
            yield _odd("other messages", str(path.relative_to(root)), text)
    for page in PAGES:
        for path in sorted(root.glob(page)):
            name = path.relative_to(root).as_posix()
            if not name.startswith(NOT_PAGES):
                yield from of_page(path.read_text(encoding="utf-8"), name)
    subjects = commit_subjects(root)
    if len(subjects) >= FEWEST_COMMITS:
        for subject in subjects:
            yield from of_commit(subject)


def of_code(source: str, name: str) -> Iterator[Finding]:
    """Measure the docstrings and messages of a module."""
    for node in ast.walk(ast.parse(source)):
        place = f"{name}:{getattr(node, 'lineno', 1)}"
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith("Error"):
                yield _odd("errors", place, _constants(node))
            elif re.match(r"_?log(ger)?\.", called):
                yield _odd("other messages", place, _constants(*node.args[:1]))
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield _odd("other messages", place, _constants(node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            yield from _of_docstring(node, place)


def of_page(text: str, name: str) -> Iterator[Finding]:
    """Measure the sentences of a Markdown page, without code, tables and headings."""
    for sentence in _sentences(text):
        is_long = len(_words(sentence)) > LONG_SENTENCE
        yield Finding("long sentences in pages", is_long, 1, name, sentence)
        yield from _vague_words("pages", name, sentence)
        yield _odd("pages", name, sentence)


def of_commit(subject: str) -> Iterator[Finding]:
    """Measure the subject of a commit."""
    scope, _, change = subject.rpartition(": ")
    is_long = len(subject) > LONG_SUBJECT
    is_imperative = _words(f"{change} none")[0] in VERBS
    yield Finding("long commit subjects", is_long, 1, "git", subject)
    yield Finding("commit subjects that are not imperative", not is_imperative, 1, "git", subject)
    yield Finding("commit subjects without a scope", not scope, 1, "git", subject)


def commit_subjects(root: Path) -> list[str]:
    """Return the subjects of commits since `SINCE`; none without git or outside a repository."""
    command = ["git", "log", "--no-merges", "--format=%s", f"--since={SINCE}"]
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return found.stdout.splitlines()


def shares(found: Iterable[Finding]) -> dict[str, float]:
    """Return the share of exceptions by measure, per cent."""
    totals: dict[str, tuple[int, int]] = {}
    for one in found:
        exceptions, items = totals.get(one.measure, (0, 0))
        totals[one.measure] = exceptions + one.exceptions, items + one.items
    return {name: 100 * wrong / items for name, (wrong, items) in totals.items() if items}


def _of_docstring(
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module, place: str
) -> Iterator[Finding]:
    text = ast.get_docstring(node)
    if not text:
        return
    first = _words(f"{text} none")[0]
    is_question = first in QUESTION_WORDS
    yield Finding("docstring opens with a question word", is_question, 1, place, text)
    if isinstance(node, ast.ClassDef | ast.Module):
        is_vague = first in VAGUE_WORDS
        yield Finding("class or module opens without a noun", is_vague, 1, place, text)
    elif not any("property" in ast.unparse(name) for name in node.decorator_list):
        is_verb = first in VERBS
        yield Finding("function opens without a verb", not is_verb, 1, place, text)
    for sentence in _sentences(text):
        yield from _vague_words("docstrings", place, sentence)
        yield _odd("docstrings", place, sentence)


def _vague_words(kind: str, place: str, sentence: str) -> Iterator[Finding]:
    words = _words(sentence)
    for name, group in (("relative", RELATIVE_WORDS), ("pointing", POINTING_WORDS)):
        count = sum(word in group for word in words)
        yield Finding(f"{name} words in {kind}", count, len(words), place, sentence)


def _odd(kind: str, place: str, text: str) -> Finding:
    return Finding(f"odd phrases in {kind}", bool(_ODD.search(text)), 1, place, text)


def _constants(*nodes: ast.AST) -> str:
    parts = (part for node in nodes for part in ast.walk(node))
    found = (part.value for part in parts if isinstance(part, ast.Constant))
    return " ".join(value for value in found if isinstance(value, str))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _sentences(text: str) -> Iterator[str]:
    """Split text into sentences; an item of a list or of `Args` is a block of its own."""
    text = re.sub(
        r"```.*?```|<!--.*?-->|^\|.*?$|^#.*?$|^\s*>>>.*?$", "\n\n", text, flags=re.S | re.M
    )
    text = re.sub(r"`+[^`]*`+", "CODE", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=\s*[\w, *]+: )|:\n", text):
        for sentence in re.split(r"(?<=[.!?])\s+(?=[\"'`A-Z0-9*(])", " ".join(block.split())):
            if sentence:
                yield sentence


def main(arguments: list[str]) -> int:
    """Print the share of each measure; with `--list`, print the exceptions below PATH."""
    found = list(findings(ROOT))
    if arguments[:1] == ["--list"]:
        measure, path = (*arguments[1:], "")[:2]
        for one in found:
            if one.exceptions and measure in one.measure and one.place.startswith(path):
                print(f"{one.place}: {' '.join(one.text.split())[:160]}")
        return 0
    above = False
    for name, share in shares(found).items():
        is_above = share > LIMITS[name]
        above |= is_above
        print(f"{'ABOVE ' if is_above else ''}{name}: {share:.2f} % (limit {LIMITS[name]:g} %)")
    if above:
        print("try: python docs/plain_words.py --list MEASURE, and reword what it lists")
    return int(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
