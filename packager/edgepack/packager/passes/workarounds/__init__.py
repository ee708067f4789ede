"""What the pass `spell_out` writes otherwise, a file for each kind."""
