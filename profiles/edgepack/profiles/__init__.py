"""Hardware profiles as data: a TOML file per target; the packager reads the files."""
