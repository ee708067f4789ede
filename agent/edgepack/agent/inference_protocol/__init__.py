"""Open Inference Protocol v2 with the binary tensor extension: messages and tensors.

The model server and its client share these modules.
"""
