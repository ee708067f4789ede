"""Float to float preparations of quantization: SmoothQuant, cross-layer equalization."""
