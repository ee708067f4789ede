"""Shadow mode for texts: both releases run the text at once, and no text is kept."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.agent import open_model
from edgepack.agent.serving.capture import SampleKeeper
from edgepack.agent.state.pointer import Shadow
from edgepack.agent.telemetry.shadowed import Shadowed
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import install_texts, make_text_bundle
from tests.simulators.waiting import wait_until


@pytest.mark.parametrize(("seed", "agrees"), [(1, True), (2, False)])
def test_texts_are_compared_with_the_release_before_and_never_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, agrees: bool
) -> None:
    kept: list[object] = []
    monkeypatch.setattr(SampleKeeper, "note_disagreement", lambda *given: kept.append(given))
    before = install_texts(tmp_path, make_text_bundle(tmp_path / "before", release=1))
    bundle = make_text_bundle(tmp_path / "new", release=seed, version="2.0.0")
    shadow = Shadow(
        bundle=before.bundle, variant="cpu", share=1.0, busy_share=1.0, memory_bytes=2**40
    )
    write_pointer(tmp_path, replace(install_texts(tmp_path, bundle), shadow=shadow))
    with open_model("chat", tmp_path, threads=1, poll_s=0.01) as model:
        wait_until(lambda: model._serving.shadow is not None)

        def found() -> Shadowed:
            model.generate("Once upon a time", temperature=1.0, max_tokens=20).whole()
            return model._serving.record.shadowed.snapshot()

        wait_until(lambda: found().count >= 2, lambda: str(found()))
        seen = found()
        assert seen.agreed == (seen.count if agrees else 0)
        assert not seen.because
    assert not kept
