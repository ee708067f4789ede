"""`python -m edgepack.agent.cli` is `edgepack-agent`."""

from edgepack.agent.cli import main

main()
