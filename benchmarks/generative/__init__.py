"""Language models: sizes, accuracy and pace, next to other tools."""
