"""The depot: sends each chunk once for many devices, at a pace that they can take."""
