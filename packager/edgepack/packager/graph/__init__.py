"""ONNX models as graphs and as files."""
