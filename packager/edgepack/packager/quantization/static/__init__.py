"""Static quantization to QDQ: ranges from calibration, scales, writing."""
