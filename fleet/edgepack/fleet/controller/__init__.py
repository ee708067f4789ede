"""Controller: stores messages of devices, answers devices and advances rollouts."""
