"""The passes of a recipe, one file each: `model -> model`."""
