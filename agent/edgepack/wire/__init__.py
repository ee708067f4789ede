"""What controller and devices say to each other: topics, messages, histograms."""
