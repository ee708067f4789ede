"""`make demo`: a real model, three different devices, a good and a bad rollout."""
