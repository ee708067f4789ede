"""Host side: makes a signed bundle with one variant per hardware profile from an ONNX model."""
