"""A state folder of version 1, where a device ran one model, brought to the layout of today.

    journal.json, active.json  ->  models/<name>/journal.json, models/<name>/active.json
    its release counters       ->  releases.json

Each file is in its new place before the old one goes, so that this may be interrupted anywhere.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec

from edgepack.agent.state.models import MODEL_NAME, model_folder
from edgepack.agent.state.pointer import POINTER_FILE
from edgepack.agent.state.release_counters import COUNTERS, COUNTERS_FILE, Counters
from edgepack.agent.state.state_file import Write, put_aside, read_regular
from edgepack.agent.update.journal import JOURNAL_FILE
from edgepack.durable import flush_folder, is_disk_fault, write_file

log = logging.getLogger(__name__)


def migrate_first_layout(state_dir: Path, *, write: Write = write_file) -> None:
    """Brings an old state folder to the layout of today; any other is left as it is.

    Raises:
        OSError: The disk is full.
    """
    old_journal, old_pointer = state_dir / JOURNAL_FILE, state_dir / POINTER_FILE
    if not old_journal.exists() and not old_pointer.exists():
        return
    journal, pointer = _read(old_journal), _read(old_pointer)
    counters = _counters(journal, pointer)
    if counters and not (state_dir / COUNTERS_FILE).exists():
        write(state_dir / COUNTERS_FILE, COUNTERS.encode(Counters(highest=counters)))
    serving = _model_of(pointer)
    updated = _model_of(journal.get("offer")) or serving
    if serving:
        _put(model_folder(state_dir, serving) / POINTER_FILE, old_pointer, write)
    if updated:
        kept = dict(journal)
        for way in ("back", "previous"):
            # It may be of the model whose place the last update took.
            if _model_of(kept.get(way)) not in ("", updated):
                kept[way] = None
        _put(model_folder(state_dir, updated) / JOURNAL_FILE, old_journal, write, kept)
    for old in (old_journal, old_pointer):
        old.unlink(missing_ok=True)
    flush_folder(state_dir)
    log.info("the state folder was brought to today's layout: models/%s", updated or serving)


def _put(path: Path, old: Path, write: Write, content: dict[str, Any] | None = None) -> None:
    if path.exists():
        return  # An earlier run got so far.
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, msgspec.json.encode(content) if content is not None else old.read_bytes())


def _read(path: Path) -> dict[str, Any]:
    """An old file; one that is damaged is put aside, and counts as none."""
    try:
        content = read_regular(path)
        if content is None:
            return {}
        found = msgspec.json.decode(content, type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        if isinstance(error, OSError) and is_disk_fault(error):
            raise
        log.warning("%s was damaged (%s); put aside as %s", path, error, put_aside(path).name)
        return {}
    return found


def _model_of(found: Any) -> str:
    """The model that an offer, a pointer or a bundle is of; "" when it is none."""
    if not isinstance(found, dict):
        return ""
    name = found.get("bundle", found)
    name = name.get("name", "") if isinstance(name, dict) else ""
    return name if isinstance(name, str) and MODEL_NAME.fullmatch(name) else ""


def _counters(journal: dict[str, Any], pointer: dict[str, Any]) -> dict[str, int]:
    noted = journal.get("highest_releases")
    found = dict(noted) if isinstance(noted, dict) else {}
    if (name := _model_of(pointer)) and pointer.get("committed"):
        found[name] = max(found.get(name, 0), pointer["bundle"].get("release", 0))
    return {name: release for name, release in found.items() if isinstance(release, int)}
