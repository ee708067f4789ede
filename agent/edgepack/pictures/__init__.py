"""Pictures as inputs of a model: decoding, preparation and answers."""
