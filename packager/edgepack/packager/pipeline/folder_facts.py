"""Facts of a Hugging Face folder for a build: how its pictures are prepared."""

from msgspec.structs import replace

from edgepack.errors import BuildError
from edgepack.packager.config.image_processors import FILE, INPUT, read_image_processor
from edgepack.packager.config.inputs import check_declarations
from edgepack.packager.pipeline.open_model import wanted_inputs
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.source.model import SourceModel


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
        return request, replace(source, notes=(*source.notes, note))
    note = f"Pictures are prepared as {FILE} of the folder {source.folder.name} states."
    return told, replace(source, notes=(*source.notes, note))
