"""Login of users at an OpenID Connect provider."""
