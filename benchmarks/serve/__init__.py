"""Calls in process and through the model server, next to bare ONNX Runtime."""
