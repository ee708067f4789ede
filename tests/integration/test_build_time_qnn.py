"""The time of a build holds for the simulator of a provider, which runs in a process of its own."""

from pathlib import Path

from edgepack.packager.pipeline.resources import Resources
from edgepack.packager.progress import BuildStep
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.search.time_limit import TimeLimit
from tests.unit.packager_passes.products import prepare_products


class _Clock:
    """Clock that reaches the end of the profile's time while the provider runs, on any machine."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def follow(self, step: BuildStep) -> None:
        """Follow the build's steps."""
        if step.what == "held-out samples" and step.outcome:
            self.now_s = 100.0
        if step.what.startswith("running on"):
            self.now_s = 200.0


def test_a_simulator_that_does_not_end_in_time_is_ended_and_the_variant_published(
    tmp_path: Path,
) -> None:
    clock = _Clock()
    with ProviderProcess() as process:
        resources = Resources(
            limit=TimeLimit(100.0, clock, after_s=0.01), process=process, progress=clock.follow
        )
        variant = prepare_products(tmp_path, count=2, profile="qnn-htp", resources=resources)
        assert not process.subject, "the simulator is ended"
    assert not variant.placement.verified
    told = "The time of the build was used up before it ran on QNNExecutionProvider: "
    assert any(note.startswith(told) for note in variant.notes)
    assert not any(note.startswith("Not run on") for note in variant.notes), "said once"
    assert (variant.folder / variant.model_file).is_file()
    assert variant.accuracy.value >= variant.accuracy.budget
