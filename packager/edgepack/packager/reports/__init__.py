"""What a build tells: the report, the summary, and numbers as people read them."""
