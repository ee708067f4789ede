"""Method of making a candidate, as a value: an id for journals, words for people."""

import msgspec


class QuantizationMethod(msgspec.Struct, frozen=True, kw_only=True):
    """Method of lowering a model's precision.

    Attributes:
        base: Conversion of floats into numbers of fewer bits: a calibration method (`minmax`), a
            rounding of weights (`hqq`), a type (`float16`), or an external quantizer
            (`quark-XINT8`).
        preparation: First change of the float model (`smooth`, `cross-layer`), or "".
        has_gptq_weights: Whether weights are rounded by GPTQ instead of to the nearest.
        has_corrected_biases: Whether biases make up for the mean error of each channel.
    """

    base: str
    preparation: str = ""
    has_gptq_weights: bool = False
    has_corrected_biases: bool = False

    @property
    def id(self) -> str:
        """The same in every release: `minmax`, `minmse+gptq`, `smooth+mse+bias-corrected`."""
        steps = (
            self.preparation,
            self.base,
            "gptq" if self.has_gptq_weights else "",
            "bias-corrected" if self.has_corrected_biases else "",
        )
        return "+".join(step for step in steps if step)

    @property
    def words(self) -> str:
        """For people: "cross-layer + mse, weights rounded by GPTQ"."""
        before = f"{self.preparation} + " if self.preparation else ""
        rounded = ", weights rounded by GPTQ" if self.has_gptq_weights else ""
        corrected = ", bias corrected" if self.has_corrected_biases else ""
        return f"{before}{self.base}{rounded}{corrected}"
