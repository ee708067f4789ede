"""Hardware profiles as data: one TOML file a target; the packager reads them."""
