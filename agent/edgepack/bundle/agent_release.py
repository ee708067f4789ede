"""Releases of the agent itself: bundles of a reserved name, with environments as artefacts.

A bundle of this name has a small model as its proof, and an archive of the agent's environment for
each kind of device. A publisher of other models can never release an agent: the fleet delegates
releases by name.
"""

import os
import sys

from edgepack.bundle.manifest import Manifest
from edgepack.errors import DeviceError

AGENT_RELEASE = "edgepack-agent"
"""Name of these bundles, and kind of their artefacts."""


def environment_kind() -> str:
    """Return the kind of environment that this device runs, such as `x86_64-cp311`."""
    return f"{os.uname().machine}-cp{sys.version_info.major}{sys.version_info.minor}"


def check_name(manifest: Manifest) -> None:
    """Reject an environment of the agent in a bundle of another name, and the reverse.

    Raises:
        DeviceError: Name and artefacts do not belong together.
    """
    facts = manifest.facts
    is_agent = facts.name == AGENT_RELEASE
    if any((one.installer == AGENT_RELEASE) != is_agent for one in facts.firmware):
        raise DeviceError(
            f"only a release named {AGENT_RELEASE} has environments of the agent, and such a "
            f"release has nothing else; this release is {facts.name}"
        )
