"""The passes of a recipe, a file each: `model -> model`."""
