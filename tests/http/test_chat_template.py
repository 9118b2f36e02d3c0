"""Chat templates come with model files, from anywhere: what they may do, and what becomes of what they may not."""

from __future__ import annotations

import re

import pytest

from pyllmcancel.chat_template import ChatTemplate
from pyllmcancel.errors import InvalidRequestError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>ü</b>"}]


def test_without_a_template_it_is_chatml() -> None:
    assert ChatTemplate(None).render(MESSAGES) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<b>ü</b><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_generation_prompt_can_be_left_out() -> None:
    assert ChatTemplate(None).render(MESSAGES[1:], add_generation_prompt=False).endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[1].content }}{{ eos_token }}", "<s><b>ü</b></s>"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "<b>ü</b>"}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "system"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ messages[0].content.strip().upper() }}", "BE BRIEF."),
        ("{{ undefined_variable }}", ""),
        # Refused as well, but by Jinja2's way of an undefined value.
        ("{{ ''|attr('__class__')|attr('__mro__')|list }}", "[]"),
    ],
)
def test_what_templates_of_models_use(source: str, expected: str) -> None:
    assert ChatTemplate(source, "<s>", "</s>").render(MESSAGES) == expected


def test_the_date_of_today() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render(MESSAGES))


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% include 'x' %}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no') }}",
        "{{ messages[0] + 1 }}",
        "{{ messages | dictsort }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ nothing.at.all }}",
    ],
)
def test_whatever_a_template_does_wrong_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert caught.value.param == "messages"
    assert MESSAGES[0] == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("source", ["{% for %}", "{{", "{% endif %}", "{{ x | no_such_filter }}"])
def test_a_template_that_cannot_be_compiled(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source)
    assert caught.value.param == "chat_template"
