"""The active model in use: opened by applications, swapped beneath them as updates come."""
