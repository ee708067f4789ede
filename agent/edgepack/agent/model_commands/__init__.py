"""Commands about a serving model: explain, measure, run once, hand over to another runtime."""
