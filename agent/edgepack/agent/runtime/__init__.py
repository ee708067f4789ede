"""Running a variant on this device: facts of the device, matching, probing, choice."""
