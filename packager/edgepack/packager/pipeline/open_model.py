"""Step 2 of a build: the source model, and its declarations: of the request, and of the
model's Hugging Face folder.
"""

from pathlib import Path

from msgspec.structs import replace

from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.errors import BuildError
from edgepack.packager.config.image_processors import FILE, INPUT, read_image_processor
from edgepack.packager.config.inputs import WantedInputs, check_declarations
from edgepack.packager.config.outputs import check_outputs, declared_parts
from edgepack.packager.graph.held_weights import hold_weights
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import Progress
from edgepack.packager.samples.cache_shapes import advise_cache
from edgepack.packager.samples.files import RANDOM_PREFIX
from edgepack.packager.samples.formats import open_files
from edgepack.packager.source.decoders.fixed import check_fixed
from edgepack.packager.source.decoders.shape import ARCHITECTURES
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel
from edgepack.packager.source.shape_advice import Shapes, refuse_open_shapes
from edgepack.packager.source.watched_outputs import watch_before_postprocessing
from edgepack.packager.tasks.describe import with_heads
from edgepack.tasks.description import NOTHING_KNOWN


def open_model(
    request: BuildRequest, profiles: tuple[Profile, ...], work: Path, progress: Progress
) -> SourceModel:
    """Open the source model and check its declarations.

    Args:
        request: Names the model, shapes and values to fix, declarations.
        profiles: The profiles decide whether static shapes are needed; checked later for each
            profile if `keep_going` is set.
        work: Folder for exported files, and for large weights.
        progress: Called for an export.

    Raises:
        BuildError: The model or a declaration is wrong.
    """
    source = open_source(
        request.model, request.shapes, request.values, work, progress, context=request.context
    )
    source = _with_places(source, request, profiles)
    source = declare(source, request, work)
    if not request.keep_going:
        for profile in profiles:
            check_shapes(source, profile, request)
    return source


def declare(source: SourceModel, request: BuildRequest, work: Path) -> SourceModel:
    """Check the declarations of a source model, and describe what is known of its outputs.

    Args:
        source: The model.
        request: Its declarations.
        work: Folder for large weights.

    Raises:
        BuildError: A declaration is wrong.
    """
    check_declarations(wanted_inputs(source, request))
    check_outputs(request.outputs, source.outputs, source.inputs)
    model = hold_weights(source.model, work / "source.weights")
    told = source.description.parts
    source = replace(source, model=model, description=NOTHING_KNOWN)
    source = source.with_parts(*declared_parts(request.outputs)).with_parts(*told)
    if request.metric is None and request.labels is None:  # these know what outputs mean
        source = watch_before_postprocessing(source)
        source = with_heads(source, request.outputs)
    return source


def _with_places(
    source: SourceModel, request: BuildRequest, profiles: tuple[Profile, ...]
) -> SourceModel:
    """Return a model with its places for adapters only if the request asks for these.

    Raises:
        BuildError: The model has no places, or a profile's provider takes no adapters.
    """
    texts = source.texts
    if not request.adapters:
        return source if texts is None else replace(source, texts=replace(texts, places=None))
    if texts is None or texts.places is None:
        raise BuildError(
            "the model has no places for adapters: edgepack knows these in decoders that it "
            "builds itself",
            found_in=str(request.model),
            remedy=f"give the folder of the weights of one of {', '.join(ARCHITECTURES)}, or "
            "leave --adapters out",
        )
    for profile in profiles:
        if profile.device.provider != CPU_PROVIDER:
            raise BuildError(
                f"profile {profile.name!r} is for {profile.device.provider}, and adapters run on "
                f"{CPU_PROVIDER}",
                remedy="build this profile without --adapters, as a model of its own",
            )
    return source


def check_shapes(source: SourceModel, profile: Profile, request: BuildRequest) -> None:
    """Reject a model with open sizes for a profile that needs static shapes.

    Args:
        source: The model.
        profile: The profile.
        request: Its samples, where there are any, tell which sizes devices feed.

    Raises:
        BuildError: The model has open sizes, and the profile needs static shapes.
    """
    if not profile.limits.static_shapes:
        return
    if source.texts is not None:
        check_fixed(source, profile.name)
    elif not all(spec.is_static for spec in source.inputs):
        advice = advise_cache(source, request.declarations)
        refuse_open_shapes(source, profile.name, _sample_shapes(source, request), advice)


def wanted_inputs(source: SourceModel, request: BuildRequest) -> WantedInputs:
    """Return the inputs of a model's samples."""
    return WantedInputs(
        specs=source.inputs,
        declarations=request.declarations,
        fixed=source.fixed,
        unprepared=source.unprepared,
    )


def _sample_shapes(source: SourceModel, request: BuildRequest) -> Shapes | None:
    """Return the shapes of the first sample file; None if the sample does not fit either."""
    where = request.calibration
    if not isinstance(where, str) or not where or where.startswith(RANDOM_PREFIX):
        return None
    try:
        first = open_files(Path(where), wanted_inputs(source, request)).fit(0)
    except BuildError:  # told as the samples are opened
        return None
    return {name: array.shape for name, array in first.feeds.items()}


def add_folder_facts(
    request: BuildRequest, source: SourceModel
) -> tuple[BuildRequest, SourceModel]:
    """Return a request with the preparation of pictures that the model's folder states.

    A declaration of the user counts before the folder. What the folder states and a bundle cannot
    is a note: the build goes on with arrays.

    Args:
        request: The build's request.
        source: Its model.
    """
    if source.folder is None or [spec.name for spec in source.inputs] != [INPUT]:
        return request, source
    if INPUT in request.declarations:
        return request, source
    try:
        stated = read_image_processor(source.folder)
        if stated is None:
            return request, source
        told = replace(request, declarations={**request.declarations, INPUT: stated})
        check_declarations(wanted_inputs(source, told))
    except BuildError as error:
        note = f"{error.problem[:1].upper()}{error.problem[1:]}; to use pictures, {error.remedy}."
        return request, replace(source, notes=(*source.notes, note), unprepared=error.problem)
    note = f"Pictures are prepared as {FILE} of the folder {source.folder.name} states."
    return told, replace(source, notes=(*source.notes, note))
