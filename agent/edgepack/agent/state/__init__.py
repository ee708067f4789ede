"""What lies in the state folder: the lock, the pointer to the active model, the slots."""
