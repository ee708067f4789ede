"""Running a variant here: what the device has, which variant fits, proving it, choosing it."""
