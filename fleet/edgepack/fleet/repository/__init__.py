"""The fleet's image repository and director: keys, TUF metadata, and signing both."""
