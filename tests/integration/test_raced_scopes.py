"""Every operator quantized, raced against convolutions and matrix products alone, on the CPU."""

from tests.integration.loose_builds import Builder
from tests.integration.source_graphs import operators_of
from tests.unit.packager_passes.target_models import TARGETS


def test_the_scope_that_won_the_race_is_published(builder: Builder) -> None:
    built, variant = builder(TARGETS["residual_cnn"]().model)
    (best,) = (attempt for attempt in variant.attempts if attempt.is_best)
    scopes = {attempt.what.startswith("every operator: ") for attempt in variant.attempts}
    assert scopes == {True, False}, "both were searched"
    (raced,) = (note for note in variant.notes if note.startswith("With every operator quantized"))
    has_won = best.what.startswith("every operator: ")
    assert raced.endswith("it goes on.") == has_won
    produced = {name for node in built.graph.node for name in node.output}
    ends_in_integers = operators_of(built)[-1] == "DequantizeLinear"
    assert built.graph.output[0].name in produced
    assert ends_in_integers == has_won, "only the other scope quantizes what is given"


def test_no_race_is_run_where_size_is_preferred(builder: Builder) -> None:
    _, variant = builder(TARGETS["residual_cnn"]().model, "cpu", prefer="size")
    assert not any(attempt.what.startswith("every operator") for attempt in variant.attempts)
