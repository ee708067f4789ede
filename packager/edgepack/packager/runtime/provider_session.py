"""Inferences in a session on a device's provider, with only the packages of a device."""

from collections.abc import Callable, Mapping

from edgepack.agent.runtime.sessions import Session, Tensor

ProviderInference = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Takes inputs by name and returns outputs by name."""


def run_of_provider(session: Session) -> ProviderInference:
    """Return a function that runs an inference; feeds that the model does not read are left out."""
    inputs = {tensor.name for tensor in session.inputs}

    def run(feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return session.run({name: value for name, value in feeds.items() if name in inputs})

    return run
