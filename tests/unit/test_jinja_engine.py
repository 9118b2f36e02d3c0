"""Chat templates mean what they mean to their authors: Jinja2 with what transformers adds."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from pyllmcancel.chat.jinja_engine import Engine, TemplateFault
from pyllmcancel.chat.template_caps import TALK

VARIABLES: dict[str, Any] = {
    "text": "é😀a",
    "numbers": [3, 1, 2],
    "nothing": None,
    "yes": True,
    "schema": {"type": ["string", "null"], "items": {"type": "integer"}},
    "empty": {"type": "array"},
    "people": [{"name": "Ann", "age": 3}, {"name": "Bob", "age": 5}, {"name": "Cy"}],
    "messages": [{"role": "user", "content": "<b>ü</b> 'q' & \"d\""}],
}

EXPRESSIONS = {
    "text[::-1]": "a😀é",
    "'a' ~ nothing": "aNone",
    "2 ** 70": "1180591620717411303424",
    "'yes' if empty.items else 'no'": "yes",  # a method is true; gpt-oss asks so for what an array holds
    "'<b>' | e": "&lt;b&gt;",
    # JSON.
    "messages[0].content | tojson": '"<b>ü</b> \'q\' & \\"d\\""',
    "schema | tojson": '{"type": ["string", "null"], "items": {"type": "integer"}}',
    "{'b': 1, 'a': [1]} | tojson(indent=2)": '{\n  "b": 1,\n  "a": [\n    1\n  ]\n}',
    "{'b': 1, 'a': 2} | tojson(sort_keys=true)": '{"a": 2, "b": 1}',
    "[1, 2] | tojson(separators=(',', ':'))": "[1,2]",
    "'ü' | tojson(ensure_ascii=true)": '"\\u00fc"',
    "[none, true, 1.5] | tojson": "[null, true, 1.5]",
    "people | map(attribute='name') | tojson": '["Ann", "Bob", "Cy"]',
}

BLOCKS = {
    **{f"{{{{ {expression} }}}}": expected for expression, expected in EXPRESSIONS.items()},
    "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% endfor %}": "32",
    "{% for n in numbers %}{% if loop.index == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}": "3",
    "{% generation %}{{ text }}{% endgeneration %}": "é😀a",
    "{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}": "[1, 2]",
    "  {% if yes %}\n  x\n  {% endif %}\n": "  x\n",
    "{%- if yes -%}\n a \n{%- endif %}\n\nb": "a\nb",
    "a\r\nb\n": "a\nb",
    "{{ text }}\n\n": "é😀a\n",
}


def rendered(source: str, **variables: Any) -> str:
    return Engine().render(source, json.dumps({**VARIABLES, **variables}))


def refusal(source: str, **variables: Any) -> str:
    with pytest.raises(TemplateFault) as caught:
        rendered(source, **variables)
    return str(caught.value)


@pytest.mark.parametrize(("source", "expected"), BLOCKS.items())
def test_a_template_does_what_its_author_sees(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_the_date_of_today_is_there() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", rendered("{{ strftime_now('%Y-%m-%d') }}"))


def test_tools_and_documents_are_none_where_there_are_none() -> None:
    source = "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
    assert rendered(source) == "TrueTrueFalse"
    assert rendered(source, tools=[], add_generation_prompt=True) == "FalseTrueTrue"


def test_a_template_that_goes_through_tools_without_asking_is_rendered_without_them() -> None:
    assert rendered("{% for tool in tools %}{{ tool }}{% endfor %}x") == "x"


def test_a_template_from_before_there_were_tools_gets_functions_as_a_text() -> None:
    function = {"name": "f", "parameters": {}}
    text = rendered("{{ 'Known: ' + functions + datetime[:0] }}", tools=[{"type": "function", "function": function}])
    assert json.loads(text.removeprefix("Known: ")) == [function]


def tool(**properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "integer", "description": "n"}, "integer/n"),
        ({"type": "integer"}, "integer/"),
        ({"type": ["null", "number"]}, "number/"),
        ({"anyOf": [{"type": "null"}, {"type": "array", "description": "a"}], "title": "A"}, "array/a"),
        ({"properties": {}}, "object/"),
        ({}, "string/"),
        (True, "string/"),
    ],
)
def test_a_template_that_refuses_a_tool_is_given_a_plainer_one(schema: Any, expected: str) -> None:
    source = (
        "{% for name, it in tools[0].function.parameters.properties.items() if tools %}"
        "{{ it.type + '/' + it.description }}{% endfor %}"
    )
    assert rendered(source, tools=[tool(it=schema)]) == expected


def test_a_template_that_takes_a_tool_is_given_it_as_it_is() -> None:
    given = tool(it={"type": ["null", "number"]}, any=True)
    assert json.loads(rendered("{{ tools[0] | tojson }}", tools=[given])) == given


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\n{% for %}", "line 2: Expected an expression, got 'end of statement block'"),
        ("a\n\n{{ 'x", 'line 3: unexpected char "\'" at 6'),
        ("{% include 'x' %}", "line 1: no loader for this environment specified"),
        ("\n\n{{ raise_exception('no\n\nsuch\trole') }}", "line 3: no such role"),
        ("\n{{ missing.name }}", "line 2: 'missing' is undefined"),
        ("\n{{ 1 + 'x' }}", "line 2: unsupported operand type(s) for +: 'int' and 'str'"),
        ("{% macro f() %}\n\n{{ 1 / 0 }}{% endmacro %}\n\n{{ f() }}", "line 3: division by zero"),
        ("\n{{ missing | tojson }}", "line 2: Undefined is not JSON"),
        ("{{ raise_exception('') }}", "line 1: "),
        ("{{ raise_exception('x' * 100000) }}", "line 1: xxx"),
        ("{% for i in range(10**8) %}{% endfor %}", "line 1: Range too big"),
    ],
)
def test_a_refusal_is_one_line_with_the_line_of_the_template(source: str, expected: str) -> None:
    said = refusal(source)
    assert said.startswith(expected)
    assert "\n" not in said
    assert len(said) < 400


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 90_000 + ")" * 90_000 + " }}",
        "{{ " + "[" * 90_000 + "]" * 90_000 + " }}",
        "{% if yes %}" * 90_000 + "{% endif %}" * 90_000,
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
    ],
    ids=["parentheses", "brackets", "blocks", "a macro in itself", "a loop in itself"],
)
def test_a_template_that_is_nested_too_deeply_is_refused(source: str) -> None:
    assert refusal(source).endswith("it is nested too deeply")


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "''['__class__']['__mro__']",
        "(''|attr('__class__')).__mro__",
        "'{0.__class__.__mro__}'.format('')",
        "('{0.__class__.__mro__}'|attr('format'))('')",
        "(['']|map(attribute='__class__')|first).__mro__",
        "raise_exception.__globals__.json",
        "cycler.__init__.__globals__.os",
        "lipsum.__globals__.os",
        "(strftime_now|attr('__globals__')).sys",
        "messages.__class__.__base__.__subclasses__()",
        "tojson.__globals__",
    ],
)
def test_nothing_leads_out_of_the_sandbox(expression: str) -> None:
    assert re.search(r"unsafe|undefined|has no attribute", refusal(f"{{{{ {expression}.x }}}}"))


def test_what_a_template_does_to_its_lists_is_not_seen_when_it_is_rendered_again() -> None:
    engine, source = Engine(), "{% set _ = messages.append(1) %}{{ messages | length }}{{ tools | length }}"
    for _ in range(2):
        assert engine.render(source, json.dumps({**VARIABLES, "tools": []})) == "20"
    refused = "{% set _ = messages.append(1) %}{{ messages | length ~ tools[0].function.parameters.type.upper() }}"
    assert engine.render(refused, json.dumps({**VARIABLES, "tools": [{"function": {"name": "f"}}]})) == "2OBJECT"
    assert Engine().render("{{ messages | length }}", json.dumps(VARIABLES)) == "1"
    assert [len(talk["messages"]) for talk in TALK] == [1, 1]


def test_half_a_character_does_not_break_a_text() -> None:
    assert rendered("{{ '\\ud83d' }}x").endswith("x")


def test_a_server_does_not_load_the_library() -> None:
    program = "import sys, pyllmcancel.server.app; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program], check=False).returncode == 0
