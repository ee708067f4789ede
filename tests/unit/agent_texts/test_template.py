"""Chat templates: what transformers renders, and templates that loop, grow, or read files."""

import json

import pytest

from edgepack.agent.generation.template import SETTINGS_FILE, TEMPLATE_FILE, ChatTemplate
from edgepack.agent.generation.template_bounds import MOST_LETTERS, MOST_STEPS
from edgepack.errors import BundleError

MESSAGES = [{"role": "user", "content": "Hi"}]
LLAMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{%- if tools is defined and tools %}{{ tools | tojson(indent=4) }}{%- endif %}
{%- set ns = namespace(count=0) %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {{- '<' ~ message.role ~ '>' + message['content'].strip() + '</s>' * 1 }}
{%- endfor %}
{%- if add_generation_prompt %}{% generation %}<assistant>{% endgeneration %}{%- endif %}"""


def again(value: str, before: str = "", start: str = "'ab'") -> str:
    """Return a template that gives a variable a new value, again and again."""
    return (
        "{% set n = namespace(x=" + start + ") %}{% for i in range(99) %}" + before
        + "{% set n.x = " + value + " %}{% endfor %}"
    )  # fmt: skip


def _template(source: str, **settings: object) -> ChatTemplate:
    files = {SETTINGS_FILE: json.dumps(settings).encode(), TEMPLATE_FILE: source.encode()}
    return ChatTemplate(files)


def test_usual_constructs_render_as_in_transformers() -> None:
    template = _template(LLAMA, bos_token={"content": "<s>"})
    assert template.render(MESSAGES) == "<s><user>Hi</s><assistant>"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "<user>ab</s>" in template.render([{"role": "user", "content": parts}])
    with pytest.raises(ValueError, match="roles must alternate"):
        template.render([*MESSAGES, *MESSAGES])
    with pytest.raises(ValueError, match="a part that is no text"):
        template.render([{"role": "user", "content": [{"type": "image_url"}]}])


def test_template_of_the_tokenizer_settings_is_used_and_may_be_absent() -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "yes"}]
    for value, expected in (("plain", "plain"), (named, "yes")):
        files = {SETTINGS_FILE: json.dumps({"chat_template": value}).encode()}
        assert ChatTemplate(files).render(MESSAGES) == expected
    none = ChatTemplate({})
    assert not none.is_there
    with pytest.raises(ValueError, match="no chat template"):
        none.render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "steps|recursion"),
        ("{% for a in range(100000) %}" + "x" * 100 + "{% endfor %}", "characters"),
        ("{{ 'a' * 99999999 }}", "characters"),
        ("{{ [1] * 99999999 }}", "characters"),
        (again("n.x ~ n.x"), "characters"),
        (again("n.x + n.x"), "characters"),
        (again("[n.x, n.x]") + "{{ n.x }}", "characters"),
        (again("n.x|replace('a', n.x)"), "characters"),
        (again("n.x.replace('a', n.x)"), "characters"),
        (again("[n.x, n.x]|join"), "characters"),
        (again("n.x.join([n.x, n.x])"), "characters"),
        (again("x", "{% set x %}{{ n.x }}{{ n.x }}{% endset %}"), "characters"),
        (again("n.x * n.x", start="9"), "numbers"),
        ("{{ 9 ** 9 ** 9 }}", "operator"),
        ("{{ '%999999999d' % 1 }}", "operator"),
        ("{{ 'a'.ljust(99999999) }}", "unsafe|undefined|not"),
        ("{{ '{:>99999999}'.format(1) }}", "unsafe|undefined|not"),
        ("{{ messages|tojson(indent=99999999) }}", "indents"),
    ],
)  # fmt: skip
def test_templates_without_end_or_measure_are_errors_with_the_limit(
    source: str, limit: str
) -> None:
    with pytest.raises(ValueError, match=f"the chat template .*({limit})"):
        _template(source).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% include '/etc/passwd' %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ range.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ self._TemplateReference__context.environment }}{{ 1/0 }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_template_that_reaches_beyond_its_messages_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="the chat template fails"):
        _template(source).render(MESSAGES)


def test_malformed_template_is_an_error_of_the_bundle() -> None:
    for source in ("{% for %}", "{{ 'a'|center(999999999) }}", "x" * 300_000):
        with pytest.raises(BundleError, match="the chat template") as caught:
            _template(source)
        assert caught.value.found_in == TEMPLATE_FILE
        assert caught.value.remedy
    with pytest.raises(BundleError, match="not UTF-8"):
        ChatTemplate({TEMPLATE_FILE: b"\xff"})


def test_limits_leave_room_for_long_conversations() -> None:
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": "word " * 50} for n in range(1001)
    ]
    assert len(_template(LLAMA).render(messages)) > 250_000
    assert (MOST_STEPS, MOST_LETTERS) == (100_000, 1_048_576)


def test_limit_does_not_outlive_its_rendering() -> None:
    template = _template("{% for m in messages %}{{ 'a' * m.content|length * 1000 }}{% endfor %}")
    with pytest.raises(ValueError, match="characters"):
        template.render([{"role": "user", "content": "x" * 5000}])
    assert len(template.render(MESSAGES)) == 2000
