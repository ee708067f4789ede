"""Names of the further numbers in a bundle's accuracy facts.

In `Accuracy.details` of a manifest; `_low` and `_high` behind a name are its bounds, 95 %.
"""

BOX_BIAS = "box_bias"
BOX_THRESHOLD = "box_threshold"
"""Of a detector: how many more or fewer boxes (negative) it finds than the float model as a share,
and the score that boxes were counted at."""

BOX_PLACES = "box_places"
"""Of a detector: share of the common boxes that agree, as a mean over COCO's overlaps."""

FREE_TOKENS = "free_token_agreement"
FORCED_TOKENS = "forced_token_agreement"
DIVERGENCE = "divergence_nats"
"""Of a decoder: how often it chooses the float model's token after its own tokens and after the
float model's, and the mean divergence."""

PERPLEXITY_RATIO = "perplexity_ratio"
FLOAT_PERPLEXITY = "float_perplexity"
FLIPPED_TOKENS = "flipped_tokens"
FLIP_MARGIN = "flip_margin"
"""Of a decoder on texts with answers: its perplexity as a multiple of the float model's, and the
float model's own; the share of answer tokens that are right in only one of both models; and the
float model's mean margin of probability, where the candidate prefers another token."""

ADAPTER_RATIO = "adapter_perplexity_ratio"
"""Of an adapter: the perplexity with the adapter as a multiple of that without."""

SAME_TEXTS = "same_texts"
"""Of a reader: share of texts that are the float model's as a whole."""

VALUE_LOW = "value_low"
SAMPLES_TO_PROVE = "samples_to_prove"
TASK_KEPT = "task_kept"
"""Of every task: the value's lower bound (95 %); where that does not prove the budget, how many
held-out samples would (0: none that one could give); and the share of the task that is kept."""


def bounded(name: str, value: float, low: float, high: float) -> dict[str, float]:
    """Return a number and its bounds by name."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def describe_box_bias(bias: float) -> str:
    """Return how many more or fewer boxes there are: `1.2 % fewer`."""
    if not round(bias, 3):
        return "as many"
    return f"{abs(bias):.1%}".replace("%", " %") + (" fewer" if bias < 0.0 else " more")
