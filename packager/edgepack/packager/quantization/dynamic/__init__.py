"""Dynamic quantization: ranges are found at run time."""
