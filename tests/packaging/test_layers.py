"""The layers of the package: calls go down only. Read from the syntax trees, imports for type checkers included."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyllmcancel"

# The architecture, from the top down, in the names of folders; the lowest layer's modules lie in the package itself. A
# module may import modules of its own layer and of those below it. A folder stands for all of its modules that are not
# named themselves.
LAYERS = {
    "commands": "cli __main__ ray",
    "servers": "server bench top hub front",
    "engine": "pyllmcancel engine",
    "embeddings": "embeddings",
    "scheduling": "scheduling",
    "requests": "requests embeddings.request",
    "chat": "chat",
    "constraints": "constraints",
    "drafting": "drafting",
    "media": "media",
    "values": "_native adapters cancellation config errors events helper inner_tokenizer missing_libraries models"
    " parts pausing placement pooling sampling shares sse step system",
}
DIALECTS = ("server.openai", "server.llama", "server.anthropic", "server.embeddings", "server.responses")
CANCELLERS = {
    f"requests.{name}"
    for name in ("endings.Endings.cancel", "registry.Registry._cancelled_on_arrival", "registry.Registry._supersede")
}


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    at_run_time: bool

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"


Sources = dict[str, str]


@cache
def sources() -> Sources:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py*")):
        if path.suffix in (".py", ".pyi"):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            name = ".".join(part for part in parts if part != "__init__")
            found[name or "pyllmcancel"] = path.read_text("utf-8")
    return found


@cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


def imports(modules: Sources) -> list[Import]:
    return [found for name, text in modules.items() for found in _imports(name, parsed(text), modules)]


def _imports(importer: str, node: ast.AST, modules: Sources, *, at_run_time: bool = True) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                yield from _imports(importer, child, modules, at_run_time=False)
            case ast.ImportFrom(module=module, names=names, level=level):
                assert level == 0, f"{importer} has a relative import"
                for alias in names:
                    whole = f"{module}.{alias.name}"
                    name = whole if _own(whole) in modules else str(module)
                    if _own(name) is not None:
                        yield Import(importer, str(_own(name)), at_run_time)
            case ast.Import(names=names):
                for alias in names:
                    if _own(alias.name) is not None:
                        yield Import(importer, str(_own(alias.name)), at_run_time)
            case _:
                yield from _imports(importer, child, modules, at_run_time=at_run_time)


def _own(name: str) -> str | None:
    """The name of a module of ours, without ``pyllmcancel.``; None of others."""
    package, _, module = name.partition(".")
    return (module or package) if package == "pyllmcancel" else None


def layer_of(module: str) -> str:
    """Its own layer, or that of the nearest package that has one."""
    name = module
    while True:
        for layer, members in LAYERS.items():
            if name in members.split():
                return layer
        assert "." in name, f"{module} is in no layer"
        name = name.rpartition(".")[0]


def upward(modules: Sources) -> list[str]:
    order = {layer: number for number, layer in enumerate(LAYERS)}
    levels = [(found, order[layer_of(found.imported)], order[layer_of(found.importer)]) for found in imports(modules)]
    return [str(found) for found, its, own in levels if its < own]


def circular(modules: Sources) -> set[str]:
    below: dict[str, set[str]] = {name: set() for name in modules}
    for found in imports(modules):
        below[found.importer].add(found.imported)
    return {name for name in modules if name in reached(name, below)}


def reached(begin: str, below: dict[str, set[str]]) -> set[str]:
    """The names that can be reached from one, which is among them if it stands in a circle."""
    seen, todo = set[str](), [begin]
    while todo:
        for name in below.get(todo.pop(), set()) - seen:
            seen.add(name)
            todo.append(name)
    return seen


def between_dialects(modules: Sources) -> list[str]:
    """Imports of one dialect by another."""

    def dialect(module: str) -> str:
        return next((one for one in DIALECTS if module.startswith(f"{one}.")), "")

    pairs = [(found, {dialect(found.importer), dialect(found.imported)} - {""}) for found in imports(modules)]
    return [str(found) for found, dialects in pairs if len(dialects) == 2]


def importers_of_the_compiled_module(modules: Sources) -> set[str]:
    return {found.importer for found in imports(modules) if found.imported == "_native" and found.at_run_time}


def cancellers(modules: Sources) -> set[str]:
    return {f"{name}.{place}" for name, text in modules.items() for place in _cancellers(parsed(text), ())}


def _cancellers(node: ast.AST, path: tuple[str, ...]) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="cancellation"), attr="request")):
                yield ".".join(path)
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _cancellers(child, (*path, child.name) if named else path)


def test_no_module_imports_a_higher_layer() -> None:
    assert upward(sources()) == []


def test_no_modules_import_each_other() -> None:
    assert circular(sources()) == set()


def test_dialects_do_not_import_each_other() -> None:
    assert between_dialects(sources()) == []


def test_only_the_engine_imports_the_compiled_module() -> None:
    # The helper is another process: the server does not import it.
    assert importers_of_the_compiled_module(sources()) == {"engine.compiled", "chat.helper_process"}
    assert not any(found.imported == "chat.helper_process" for found in imports(sources()))


def test_a_request_is_cancelled_by_the_endings_and_the_registry() -> None:
    assert cancellers(sources()) == CANCELLERS


FILLS = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
CONTAINER = re.compile(r"[\[{]|(\w+\.)?(dict|list|set|deque|Counter|OrderedDict|defaultdict|Weak\w+)\(")
CACHE = re.compile(r"(functools\.)?(lru_)?cache")


def caches(text: str) -> set[str]:
    """Names of what a module keeps for the process: functions with caches, and containers that its functions fill."""
    tree = parsed(text)
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]
    containers = {name for scope in scopes for name in _containers(scope.body)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    marked = [(one.name, mark) for one in functions for mark in one.decorator_list]
    found = {name for name, mark in marked if _is_cache(mark.func if isinstance(mark, ast.Call) else mark)}
    for node in (node for function in functions for node in ast.walk(function)):
        match node:
            case ast.Global(names=names):
                found |= set(names)
            case ast.Subscript(value=target, ctx=ast.Store()):
                found |= containers & {_last_name(target)}
            case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in FILLS:
                found |= containers & {_last_name(target)}
    marks = {id(mark) for _, mark in marked}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in marks]
    return found | {ast.unparse(call) for call in calls if _is_cache(call.func)}


def _is_cache(node: ast.AST) -> bool:
    return CACHE.fullmatch(ast.unparse(node)) is not None


def _containers(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and CONTAINER.match(ast.unparse(node.value)):
            yield from map(_last_name, node.targets if isinstance(node, ast.Assign) else [node.target])


def _last_name(node: ast.AST) -> str:
    return ast.unparse(node).rpartition(".")[2]


@pytest.mark.parametrize(
    "text",
    [
        "@functools.lru_cache(8)\ndef f(x): ...",
        "@cache\nasync def f(x): ...",
        "g = lru_cache(maxsize=8)(f)",
        "SEEN = {}\ndef f(x):\n SEEN[x] = 1",
        "SEEN: dict[str, int] = {}\nasync def f(x):\n SEEN.setdefault(x, 1)",
        "SEEN = OrderedDict()\nclass C:\n def f(self, x):\n  SEEN.update(x)",
        "class C:\n seen: ClassVar = weakref.WeakKeyDictionary()\n def f(self, x):\n  self.seen[x] = 1",
        "LAST = None\ndef f(x):\n global LAST\n LAST = x",
    ],
)
def test_a_cache_of_the_process_is_found(text: str) -> None:
    assert len(caches(text)) == 1


def test_no_cache_of_the_process_has_what_requests_contain() -> None:
    """Another owner's same request would be answered faster. These have only what belongs to the program."""
    found = {path.relative_to(PACKAGE): caches(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert {f"{path.as_posix()}:{name}" for path, names in found.items() for name in names} == {
        "server/app.py:all_routes",
        "server/media/fetching.py:tls",
        "server/openapi/description.py:FURTHER",  # the types of bodies and events
        "server/openapi/description.py:MODELS",  # the types of answers
        "server/openapi/description.py:text",
        "server/page.py:page_files",
        "server/wire/fields.py:takes_empty",
        "server/wire/fields.py:wire_fields",
    }


def test_every_name_in_the_picture_is_a_module_and_stands_there_once() -> None:
    names = [name for members in LAYERS.values() for name in members.split()]
    assert len(names) == len(set(names))
    assert set(names) <= sources().keys()


@pytest.mark.parametrize(
    ("module", "added"),
    [
        ("requests.registry", "from pyllmcancel.engine.loop import EngineLoop"),
        ("scheduling.scheduler", "def later():\n    import pyllmcancel.engine.engine"),
        ("constraints.protocol", "if TYPE_CHECKING:\n    from pyllmcancel.requests.token_stream import Stream"),
        ("engine.loading", "from pyllmcancel.server import app"),
    ],
)
def test_an_import_upwards_is_found(module: str, added: str) -> None:
    changed = sources() | {module: f"{sources()[module]}\n{added}\n"}
    assert [found.split(" ")[0] for found in upward(changed)] == [module]


def test_a_circle_is_found_in_a_layer_too() -> None:
    added = "if TYPE_CHECKING:\n    from pyllmcancel.requests.registry import Registry"
    changed = sources() | {"requests.tables": f"{sources()['requests.tables']}\n{added}\n"}
    assert {"requests.registry", "requests.tables"} <= circular(changed)
    assert upward(changed) == []


def test_what_else_is_forbidden_is_found() -> None:
    borrowed = {"server.llama.body": "from pyllmcancel.server.openai.answer import Envelope"}
    assert between_dialects(sources() | borrowed) == ["server.llama.body -> server.openai.answer"]
    compiled = {"engine.loop": "from pyllmcancel import _native"}
    assert "engine.loop" in importers_of_the_compiled_module(sources() | compiled)
    third = "class EngineLoop:\n    def turn(self, request):\n        request.cancellation.request(REASON)"
    assert cancellers(sources() | {"engine.loop": third}) == CANCELLERS | {"engine.loop.EngineLoop.turn"}
