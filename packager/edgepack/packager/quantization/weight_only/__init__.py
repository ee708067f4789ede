"""Weight-only quantization in blocks: RTN, HQQ, GPTQ."""
