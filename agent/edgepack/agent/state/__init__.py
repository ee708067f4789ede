"""State folder: the lock, the pointers to active models, the slots."""
