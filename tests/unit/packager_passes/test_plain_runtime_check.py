"""What is said of a variant that ONNX Runtime by itself computes otherwise."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from edgepack.agent.runtime.opening import GRAPH_OPTIMIZATION, MEMORY_PATTERN, ProviderSettings
from edgepack.bundle.manifest import PlainRuntime
from edgepack.errors import BuildError
from edgepack.packager.graph.saturation import EXACT_SUMS
from edgepack.packager.pipeline import plain_runtime_check
from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.model_run import Run
from edgepack.packager.runtime.plain_runtime import PlainRelease
from edgepack.packager.search.time_limit import TimeLimit
from edgepack.packager.tensors.sequence import Feeds
from edgepack.tasks.arrays import Outputs
from tests.unit.packager_passes.products import prepare_products


class _Otherwise(PlainRelease, frozen=True, kw_only=True):
    """A release whose optimizer breaks the model at some levels, or refuses it."""

    right_at: tuple[str, ...]
    refuses: bool = False
    plans_wrongly: bool = False

    @contextlib.contextmanager
    def open(
        self, model: Path, options: Mapping[str, str], deadline: Deadline | None = None
    ) -> Iterator[Run]:
        level = options.get(GRAPH_OPTIMIZATION, "")
        if level not in self.right_at and self.refuses:
            raise BuildError("no kernel for it")
        is_right = level in self.right_at
        if self.plans_wrongly and options.get(MEMORY_PATTERN) != "0":
            is_right = False
        with PlainRelease(release=self.release).open(model, {}) as right:

            def run(feeds: Feeds) -> Outputs:
                outputs = right(feeds)
                if is_right:
                    return outputs
                return {name: value * -1 for name, value in outputs.items()}

            yield run


_FINE = _Otherwise(release="9.0", right_at=("", "extended", "basic", "disable_all"))
_BREAKS = _Otherwise(release="8.0", right_at=("basic", "disable_all"))
_REFUSES = _Otherwise(release="7.0", right_at=("disable_all",), refuses=True)
_WRONG = _Otherwise(release="6.0", right_at=())
_PLANS = _Otherwise(release="5.0", right_at=_FINE.right_at, plans_wrongly=True)
_PLANS_AND_BREAKS = _Otherwise(release="4.0", right_at=("disable_all",), plans_wrongly=True)


@pytest.mark.parametrize(
    ("releases", "expected", "told"),
    [
        ((_FINE,), PlainRuntime(releases=("9.0",), right=True, session_options=EXACT_SUMS), "VNNI"),
        (
            (_FINE, _BREAKS),
            PlainRuntime(
                releases=("9.0", "8.0"),
                right=True,
                session_options=EXACT_SUMS | {GRAPH_OPTIMIZATION: "basic"},
            ),
            "(8.0: explained_by_column -",
        ),
        (
            (_REFUSES,),
            PlainRuntime(
                releases=("7.0",), right=True, session_options={GRAPH_OPTIMIZATION: "disable_all"}
            ),
            "(7.0: no kernel for it)",
        ),
        (
            (_WRONG,),
            PlainRuntime(releases=("6.0",), right=False),
            "with whatever settings (6.0: ",
        ),
        (
            (_FINE, _PLANS),
            PlainRuntime(
                releases=("9.0", "5.0"),
                right=True,
                session_options=EXACT_SUMS | {MEMORY_PATTERN: "0"},
            ),
            "needs session.x64quantprecision=1, session.enable_mem_pattern=0 to run it",
        ),
        (
            (_PLANS_AND_BREAKS,),
            PlainRuntime(
                releases=("4.0",),
                right=True,
                session_options={GRAPH_OPTIMIZATION: "disable_all", MEMORY_PATTERN: "0"},
            ),
            "(4.0: explained_by_column -",
        ),
    ],
    ids=[
        "its own settings",
        "an optimizer breaks it",
        "a release refuses it",
        "never right",
        "its plan of memory is wrong",
        "plan and optimizer are wrong",
    ],
)
def test_the_least_settings_with_which_all_releases_are_right_are_named(
    releases: tuple[PlainRelease, ...], expected: PlainRuntime, told: str, tmp_path: Path
) -> None:
    variant = prepare_products(tmp_path, count=2, profile="vitisai-a8w8", plain_releases=releases)
    assert variant.plain_runtime == expected
    (note,) = (note for note in variant.notes if "by itself" in note)
    assert told in note


def test_a_release_that_is_never_right_hides_nothing_of_others(tmp_path: Path) -> None:
    releases = (_FINE, _BREAKS, _WRONG)
    variant = prepare_products(tmp_path, count=2, profile="vitisai-a8w8", plain_releases=releases)
    assert variant.plain_runtime == PlainRuntime(
        releases=("9.0", "8.0"),
        right=True,
        session_options=EXACT_SUMS | {GRAPH_OPTIMIZATION: "basic"},
    )
    notes = [note for note in variant.notes if "by itself" in note]
    assert notes[0].startswith("ONNX Runtime 6.0 by itself does not run it as well, with whatever")
    assert "needs session.x64quantprecision=1, session.graph_optimization_level=basic" in notes[1]


def test_what_is_published_is_looked_at_though_no_time_is_left(tmp_path: Path) -> None:
    variant = prepare_products(
        tmp_path,
        count=2,
        profile="vitisai-a8w8",
        plain_releases=(_FINE, _BREAKS),
        resources=Resources(limit=TimeLimit(1e-9)),
    )
    assert variant.plain_runtime is not None
    assert variant.plain_runtime.right
    last = {GRAPH_OPTIMIZATION: "disable_all", MEMORY_PATTERN: "0"}
    assert variant.plain_runtime.session_options == last


def test_nothing_is_said_of_a_variant_for_this_very_runtime(tmp_path: Path) -> None:
    here = PlainRelease(release="1.0")
    variant = prepare_products(tmp_path, count=2, plain_releases=(here,))
    assert variant.plain_runtime == PlainRuntime(releases=("1.0",), right=True)
    assert not [note for note in variant.notes if "by itself" in note]


def test_what_a_plain_session_on_the_own_provider_needs_is_named_with_the_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _Otherwise(
        release="8.0",
        right_at=("disable_all",),
        on=ProviderSettings(provider="OpenVINOExecutionProvider", device="cpu"),
    )
    monkeypatch.setattr(plain_runtime_check, "_own_provider", lambda searched: (own,))
    variant = prepare_products(
        tmp_path, count=2, profile="vitisai-a8w8", plain_releases=(PlainRelease(release="9.0"),)
    )
    assert variant.plain_runtime is not None
    assert variant.plain_runtime.session_options == EXACT_SUMS, "of the CPU provider alone"
    assert variant.plain_provider == PlainRuntime(
        releases=("8.0",), right=True, session_options={GRAPH_OPTIMIZATION: "disable_all"}
    )
    note = variant.notes[-1]
    assert "on OpenVINOExecutionProvider" in note
    assert "session.graph_optimization_level=disable_all" in note
    assert "(8.0: " in note
