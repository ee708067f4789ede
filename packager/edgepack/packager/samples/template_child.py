"""The child that renders chats by the template of a model's folder.

    python -m edgepack.packager.samples.template_child

A template is a program of somebody else: it may loop, or take all memory. The sandbox keeps it from
files and from Python's insides; the parent ends this process at its limits.
"""

import datetime
import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.packager.samples.prompts import Rendered

_MOST_CHARACTERS = 4_000_000
"""Of a rendered chat."""


def main() -> None:
    """Render every chat and answer with the texts, or with the problem."""
    request = json.loads(take_request())
    answer_to = keep_stdout_clean(float(request["timeout_s"]))
    answer_to.write(msgspec.json.encode(_render(request)))
    answer_to.close()
    os._exit(0)


def _render(request: Mapping[str, Any]) -> Rendered:
    try:
        import jinja2
    except ImportError:
        return Rendered(problem="jinja2 is not installed: pip install 'edgepack[host]'")
    failed, texts = -1, []
    try:
        template = _compile(str(request["source"]))
        for failed, messages in enumerate(request["chats"]):
            text = template.render(
                messages=messages, add_generation_prompt=True, **request["tokens"]
            )
            if len(text) > _MOST_CHARACTERS:
                return Rendered(failed=failed, problem=f"it writes {len(text):,} characters")
            texts.append(text)
    except (jinja2.TemplateError, ArithmeticError, LookupError, MemoryError) as error:
        return Rendered(failed=failed, problem=_words(error))
    except (RecursionError, TypeError, ValueError, AttributeError) as error:
        return Rendered(failed=failed, problem=_words(error))
    return Rendered(texts=tuple(texts))


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _compile(source: str) -> Any:
    """Return the template with what Hugging Face's templates may call."""
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.fromtimestamp(0, datetime.UTC).strftime(form)

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


if __name__ == "__main__":
    main()
