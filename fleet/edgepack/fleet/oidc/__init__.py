"""People who log in at an OpenID Connect provider."""
