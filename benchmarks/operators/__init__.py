"""Every common operator, quantized, on a provider and on the CPU: `make scan-operators`."""
