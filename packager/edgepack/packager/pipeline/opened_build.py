"""What a build works on once it has opened what it was given."""

import msgspec

from edgepack.packager.pipeline.build_samples import BuildSamples
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.source.model import SourceModel


class OpenedBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A request with its model and samples.

    Attributes:
        request: What was asked for.
        source: The model.
        samples: What variants are made from and judged by.
    """

    request: BuildRequest
    source: SourceModel
    samples: BuildSamples
