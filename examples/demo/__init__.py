"""`make demo`: one real model, three unlike devices, two rollouts, one of them bad."""
