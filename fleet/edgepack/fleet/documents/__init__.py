"""What the API takes and gives: typed values, JSON on the way."""
