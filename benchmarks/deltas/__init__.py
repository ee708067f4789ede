"""What an update of a model costs on the wire, by what changed and by how it is sent."""
