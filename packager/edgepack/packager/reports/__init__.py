"""Reports of a build: the page, the summary, and numbers for people."""
