"""Proof of a new agent, before the switch: an older agent runs this module in the new environment.

    python -m edgepack.agent.cli.proof SETTINGS BUNDLE [connect]

The last line of stdout is the proof. Any other end is a failure, with its reason on stderr.
"""

import sys
from pathlib import Path

from edgepack.agent.cli.assembly import check_settings
from edgepack.agent.config import AgentConfig, read_config
from edgepack.agent.doctor.identity import try_broker
from edgepack.agent.runtime.facts_reader import FactsReader
from edgepack.agent.runtime.matching import match_variants
from edgepack.agent.runtime.probe import probe_variant
from edgepack.bundle.pkcs11_uri import is_uri
from edgepack.errors import DeviceError, EdgepackError
from edgepack.wire.reports import ProbeResult


def prove(config_path: Path, bundle: Path, *, connects: bool) -> str:
    """Prove that this environment can take the agent's place; return the proof as a sentence.

    1. All modules load, and the settings with their keys are accepted.
    2. The release is verified, and a variant of its model gives the expected answers here.
    3. A broker accepts a connection with the device's certificate. The connection carries no
       message: the session belongs to the agent in service.

    Args:
        config_path: The agent's settings.
        bundle: Folder of the release.
        connects: Whether a broker must be reached.

    Raises:
        EdgepackError: A step failed.
    """
    config = read_config(config_path)
    result = _serve_once(config, bundle)
    shown = f"{result.variant} is right on {result.provider}"
    if not connects or config.broker is None or is_uri(config.signing_key):
        return shown
    found = list(try_broker(config.broker, config.device))
    if not any(one.verdict != "wrong" for one in found):
        raise DeviceError("; ".join(one.fact for one in found))
    return f"{shown}; a broker accepts connections"


def _serve_once(config: AgentConfig, bundle: Path) -> ProbeResult:
    trust = check_settings(config)
    manifest = trust.check_folder(bundle, complete=False).manifest
    facts = FactsReader(config.providers).read()
    matches = match_variants(manifest, facts, config.providers, trust)
    reasons = [f"{name}: {why}" for name, why in matches.rejected.items()]
    for variant in matches.candidates:
        result = probe_variant(
            bundle, variant, config=config.probe, threads=config.providers.threads
        )
        if result.right:
            return result
        reasons.append(f"{variant.name}: {result.because}")
    raise DeviceError(f"no variant of the release works: {'; '.join(reasons)}")


def main() -> None:
    """Run the proof; a failure ends with exit code 1."""
    config_path, bundle, *rest = sys.argv[1:]
    try:
        print(prove(Path(config_path), Path(bundle), connects="connect" in rest))
    except (EdgepackError, OSError) as error:
        problem = error.problem if isinstance(error, EdgepackError) else str(error)
        sys.exit(" ".join(problem.split()))


if __name__ == "__main__":
    main()
