"""AMD's own quantizer in place of ours: it runs in a Python environment of its own."""
