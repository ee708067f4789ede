"""What a tensor is: sequences of samples, meanings, specs and observations."""
