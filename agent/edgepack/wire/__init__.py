"""Messages between controller and devices: topics, messages, histograms."""
