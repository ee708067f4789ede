"""The active model in use: opened by applications, swapped during use as updates come."""
