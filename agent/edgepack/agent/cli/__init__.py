"""The `edgepack-agent` command: run the agent, show its state, install without a network."""

from edgepack.agent.cli.commands import cli, main

__all__ = ["cli", "main"]
