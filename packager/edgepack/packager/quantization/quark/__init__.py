"""AMD's own quantizer as an alternative: Quark runs in a separate Python environment."""
