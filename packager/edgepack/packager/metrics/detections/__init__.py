"""What a detector finds: boxes out of its outputs, and how well two sets of boxes agree."""
