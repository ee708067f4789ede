"""Documents of the API: typed values, sent as JSON."""
