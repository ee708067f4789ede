"""Ways to lower the precision beside static quantization: float16, dynamic, weights only."""
