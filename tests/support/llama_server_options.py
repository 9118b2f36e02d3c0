"""The options of the pinned llama-server, read from its source."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "common"
STRING = re.compile(r'"([^"]*)"')


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its names, those that turn it off, how many values it takes, its variable, and what it does."""

    names: tuple[str, ...]
    off: tuple[str, ...]
    n_values: int
    variable: str
    code: str


@cache
def options() -> tuple[Option, ...]:
    """Return the options that `llama-server --help` lists."""
    text = (SOURCE / "arg.cpp").read_text("utf-8")
    begin = text.index("common_params_context common_params_parser_init(")
    text = text[begin : text.index("void common_params_add_preset_options")]
    found = [_option(part) for part in text.split("add_opt(common_arg(")[1:] if _is_the_servers(part)]
    assert len(found) > 200, "the source has changed its form"
    return tuple(found)


def _is_the_servers(part: str) -> bool:
    examples = re.search(r"set_examples\(\{(.*?)\}\)", part, re.DOTALL)
    excluded = re.search(r"set_excludes\(\{(.*?)\}\)", part, re.DOTALL)
    named = examples is None or re.search(r"\bLLAMA_EXAMPLE_(SERVER|COMMON)\b", examples[1]) is not None
    return named and not (excluded and "LLAMA_EXAMPLE_SERVER" in excluded[1])


def _option(part: str) -> Option:
    part = re.sub(r"\A(\s*//[^\n]*\n)*\s*", "", part)
    names = re.match(r"\{(.*?)\},\s*(?:\{(.*?)\},)?", part, re.DOTALL)
    handler = re.search(r"\[[^\]]*\]\s*\(([^)]*)\)\s*\{(.*)", part, re.DOTALL)
    assert names
    assert handler
    n_values = 0 if "bool" in handler[1] else handler[1].count(",")
    variable = re.search(r'set_env\("(.*?)"\)', part)
    on, off = (tuple(STRING.findall(group or "")) for group in names.groups())
    return Option(on, off, n_values, variable[1] if variable else "", handler[2])


def sampler_letters() -> dict[str, str]:
    """llama.cpp's names of samplers by its letters for them."""
    text = (SOURCE / "sampling.cpp").read_text("utf-8")
    letters = re.findall(r"case COMMON_SAMPLER_TYPE_(\w+):\s*return '(.)'", text)
    names = dict(re.findall(r'case COMMON_SAMPLER_TYPE_(\w+):\s*return "(\w+)"', text))
    return {letter: names[kind] for kind, letter in letters}
