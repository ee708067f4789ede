"""Files of pipelines of two stages, one behind the other."""

PIPELINE_OF_TWO = """
[pipeline]
task = "values"
outputs = ["end"]
keep = KEEP
[inputs.start]
kind = "tensor"
dtype = "float32"
shape = [1, SIZE]
[[stage]]
name = "first"
model = "FIRST"
inputs = { x = "start" }
outputs = { y = "middle" }
[[stage]]
name = "second"
model = "SECOND"
inputs = { x = "middle" }
outputs = { y = "end" }
"""


def pipeline_of_two(
    first: str = "first.onnx", second: str = "second.onnx", *, size: int = 4, keep: float = 0.99
) -> str:
    """Return a `pipeline.toml` of two graphs from `x` to `y`, float32 [1, size].

    Args:
        first, second: Files of the graphs.
        size: Values of each tensor.
        keep: Share of the float pipeline's result that is kept.
    """
    text = PIPELINE_OF_TWO
    words = {"KEEP": keep, "SIZE": size, "FIRST": first, "SECOND": second}
    for name, value in words.items():
        text = text.replace(name, str(value))
    return text
