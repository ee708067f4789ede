"""The `edgepack-agent` command: run the agent, look at it, install without a network."""

from edgepack.agent.cli.commands import cli, main

__all__ = ["cli", "main"]
