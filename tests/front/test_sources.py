"""Where the models come from: options, a folder, and a file of presets."""

import argparse
import math
import os
from pathlib import Path

import pytest

from pyllmcancel.cli import command_parser
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.router_options import Sources, serves_several, without_front_variables
from pyllmcancel.cli.serve_models import checked
from pyllmcancel.errors import UsageError
from pyllmcancel.front.preset import read_preset
from pyllmcancel.front.spec import Catalog, Spec, models_in


def parsed(*given: str) -> argparse.Namespace:
    return command_parser().parse_args(["serve", *given])


def read(*given: str) -> Catalog:
    arguments = parsed(*given)
    assert serves_several(arguments)
    return checked(arguments, Sources(arguments, arguments.given, arguments.parser))


def children(folder: Path, *given: str) -> list[argparse.Namespace]:
    arguments = parsed(*given)
    sources = Sources(arguments, arguments.given, arguments.parser)
    commands = [
        sources.command(worker, folder / "m1.sock")
        for spec in checked(arguments, sources).specs.values()
        for worker in spec.workers
    ]
    assert all(environment == {"NOTIFY_SOCKET": ""} for _, environment in commands)
    return [parsed(*command[command.index("serve") + 1 :]) for command, _ in commands]


def gguf(path: Path, size: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"GGUF".ljust(size, b"\0"))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    gguf(models / "small.gguf", 100)
    gguf(models / "parts" / "big-00001-of-00002.gguf", 200)
    gguf(models / "parts" / "big-00002-of-00002.gguf", 300)
    gguf(models / "seeing" / "mmproj-F16.gguf")
    gguf(models / "seeing" / "seeing.gguf")
    (models / "notes.txt").touch()
    return models


def test_a_folder_has_each_file_and_each_folder(folder: Path) -> None:
    assert models_in(folder) == [
        ("parts", folder / "parts" / "big-00001-of-00002.gguf"),
        ("seeing", folder / "seeing" / "seeing.gguf"),
        ("small", folder / "small.gguf"),
    ]
    catalog = read("--models-dir", str(folder))
    assert {name: spec.size for name, spec in catalog.specs.items()} == {"parts": 500, "seeing": 16, "small": 100}


def test_several_models_are_named_after_their_files_and_the_first_is_the_default(tmp_path: Path) -> None:
    one, other = gguf(tmp_path / "one.gguf"), gguf(tmp_path / "other.gguf")
    catalog = read("-m", str(one), "-m", str(other), "--ctx-size", "512", "--threads=2")
    assert list(catalog.specs) == ["one", "other"]
    assert catalog.default is catalog.specs["one"]
    assert catalog.specs["other"].options == ("--ctx-size", "512", "--threads=2", f"--model={other}")


def test_a_file_that_is_no_model_is_not_the_default(folder: Path) -> None:
    (folder / "an-essay.gguf").write_text("text")
    catalog = read("--models-dir", str(folder))
    assert list(catalog.specs) == ["an-essay", "parts", "seeing", "small"]
    assert catalog.default is catalog.specs["parts"]
    (why,) = catalog.passed_over
    assert why.startswith("an-essay is not the default model: ")
    assert "is not a GGUF file" in why
    for path in folder.rglob("*.gguf"):
        path.write_text("text")
    nothing = read("--models-dir", str(folder))
    assert nothing.default is nothing.specs["an-essay"]
    assert len(nothing.passed_over) == 4


def test_new_models_are_added_and_those_of_before_stay_as_they_were(folder: Path) -> None:
    catalog, later = read("--models-dir", str(folder)), read("--models-dir", str(folder), "--ctx-size", "512")
    before = dict(catalog.specs)
    later.specs["new"] = new = Spec(name="new", path=None, options=(), aliases=("small", "newest"), replicas=2)
    catalog.add_new(later)
    assert catalog.specs == before | {"new": new}
    assert catalog.default is catalog.find("parts") is before["parts"]
    assert (catalog.find("newest"), catalog.find("small")) == (new, before["small"])
    empty = Catalog([])
    empty.add_new(catalog)
    assert empty.default is catalog.default
    with pytest.raises(UsageError, match="a model is called new:2, as a replica of new would be"):
        catalog.add_new(Catalog([Spec(name="new:2", path=None, options=())]))
    assert "new:2" not in catalog.specs


def test_the_front_keeps_its_own_options(tmp_path: Path) -> None:
    one = gguf(tmp_path / "one.gguf")
    options = ("--sleep-idle-seconds", "5", "--port=1", "--host", "x", "--api-key", "k", "-c", "9")
    spec = read(str(one), *options).specs["one"]
    assert spec.options == ("-c", "9", f"--model={one}")
    assert spec.idle_after == 5.0


def test_two_names_of_one_file_are_one_model(tmp_path: Path, folder: Path) -> None:
    os.symlink(folder / "small.gguf", tmp_path / "same.gguf")
    catalog = read("-m", str(tmp_path / "same.gguf"), "--models-dir", str(folder))
    assert list(catalog.specs) == ["same", "parts", "seeing"]
    assert catalog.find("small") is catalog.specs["same"]


def test_two_models_of_one_name_are_refused(tmp_path: Path, folder: Path) -> None:
    other = gguf(tmp_path / "small.gguf")
    with pytest.raises(UsageError, match="two models are called small"):
        read("-m", str(other), "--models-dir", str(folder))


INI = """
version = 1
; a comment
[*]
c = 8192
[small]
ctx-size = 4096  # of its own
pin = true;
alias = s, little
[mine] # another one
model = {path}
n-predict = 7
mmap = off
no-slots = true
load-on-startup = 1
sleep-idle-seconds = 60
stop-timeout = 3
"""
TOML = """
["*"]
c = 8192
[small]
ctx-size = 4096
pin = true
alias = ["s", "little"]
[mine]
model = "{path}"
n-predict = 7
mmap = false
no-slots = true
load-on-startup = true
sleep-idle-seconds = 60
"""


@pytest.mark.parametrize(("name", "text"), [("preset.ini", INI), ("preset.toml", TOML)])
def test_a_preset_names_models_and_configures_the_folders(tmp_path: Path, folder: Path, name: str, text: str) -> None:
    path = gguf(tmp_path / "file.gguf")
    preset = tmp_path / name
    preset.write_text(text.format(path=path))
    catalog = read("--models-dir", str(folder), "--models-preset", str(preset), "--threads", "1")
    small, mine = catalog.specs["small"], catalog.specs["mine"]
    assert (small.pinned, small.starts, small.aliases) == (True, False, ("s", "little"))
    assert small.options[:2] == ("--ctx-size=8192", "--ctx-size=4096")  # the last one counts
    assert (mine.starts, mine.idle_after, mine.path) == (True, 60.0, path)
    flags = ("--ctx-size=8192", "--n-predict=7", "--no-mmap", "--no-slots", "--threads", "1")
    assert mine.options == (*flags, f"--model={path}")
    assert catalog.specs["parts"].idle_after == math.inf
    for spec in catalog.specs.values():  # each command can be read
        parsed(*spec.options)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a]\nmodel = x.gguf\nctx-sise = 1\n", "ctx-sise is not an option of serve; did you mean --ctx-size?"),
        ("[a]\nmodel = x.gguf\nctx-size = many\n", "ctx-size must be a whole number, not 'many'"),
        ("[a]\nmodel = x.gguf\nport = 1\n", "port is an option of all models together"),
        ("[a]\nmodel = x.gguf\napi-key = k\n", "api-key is an option of all models together"),
        ("[a]\nmodel = x.gguf\npin = maybe\n", "pin must be one of"),
        ("[a]\nctx-size = 1\n", r"\[a\] of --models-preset must have either model or hf-repo"),
        ("[a]\nnonsense\n", "line 2: must be KEY = VALUE or"),
        ("", "there is no model"),
    ],
)
def test_a_wrong_preset_is_refused_with_the_reason(tmp_path: Path, text: str, why: str) -> None:
    preset = tmp_path / "preset.ini"
    preset.write_text(text)
    with pytest.raises(UsageError, match=why):
        read("--models-preset", str(preset))


def test_a_wrong_toml_is_refused(tmp_path: Path) -> None:
    preset = tmp_path / "preset.toml"
    for text in ("[a", "a = 1", "[a]\nb = 2020-01-01"):
        preset.write_text(text)
        with pytest.raises(UsageError, match=r"preset\.toml: "):
            read_preset(preset)


def test_a_file_that_is_no_model_is_refused_at_the_start(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_text("hello")
    with pytest.raises(UsageError, match="is not a GGUF file"):
        read("-m", str(wrong), "-m", str(gguf(tmp_path / "b.gguf")))
    with pytest.raises(UsageError, match="is not a folder"):
        read("--models-dir", str(wrong))


def test_one_model_needs_no_front() -> None:
    assert not serves_several(parsed())
    assert not serves_several(parsed("-m", "x.gguf"))
    assert serves_several(parsed("--sleep-idle-seconds", "9"))


def test_a_models_process_gets_a_socket_a_name_and_no_option_of_the_front(tmp_path: Path) -> None:
    one = gguf(tmp_path / "one.gguf")
    models = ("-m", str(one), "-m", str(gguf(tmp_path / "b.gguf")))
    child, _ = children(tmp_path, *models, "--store", "x.db", "--port", "1", "--cache-disk", "d")
    assert (str(child.model), child.host, child.port, child.alias) == (str(one), str(tmp_path / "m1.sock"), 8000, "one")
    assert (child.store, child.worker_key, child.replica) == ("x-one.db", tmp_path / "key", "one")
    assert child.cache_disk == Path("d/model-one"), "one server uses a folder at a time"


def test_a_models_process_gets_no_keys_of_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ("-m", str(gguf(tmp_path / "one.gguf")), "-m", str(gguf(tmp_path / "b.gguf")))
    for name in ("PYLLMCANCEL_API_KEY", "PYLLMCANCEL_API_KEY_FILE", "PYLLMCANCEL_ADMIN_API_KEY", "LLAMA_API_KEY"):
        monkeypatch.setenv(name, "of-the-front")
    without_front_variables()
    child, _ = children(tmp_path, *models, "--api-key", "a,b", "--api-key-file=keys", "--admin-api-key", "c")
    check_environment(child, os.environ)
    assert (child.api_key, child.api_key_file, child.admin_api_key) == (None, None, None)


def test_models_whose_names_no_header_can_carry_are_told_apart(tmp_path: Path) -> None:
    names = ("模型一", "模型二", "--help", "a b", "a-b", "b" * 200 + "1", "b" * 200 + "2")
    for name in names:
        gguf(tmp_path / f"{name}.gguf")
    found = children(tmp_path, "--models-dir", str(tmp_path), "--store", "x.db", "--cache-disk", "d")
    assert {child.alias for child in found} == set(names)
    for what in ("replica", "store", "cache_disk"):
        assert len({getattr(child, what) for child in found}) == len(names)


def test_the_only_model_has_its_alias_and_is_loaded_at_the_start(tmp_path: Path) -> None:
    catalog = read(str(gguf(tmp_path / "one.gguf")), "--sleep-idle-seconds", "5", "--alias", "mine,other")
    (spec,) = catalog.specs.values()
    assert (spec.name, spec.aliases, spec.starts) == ("mine", ("other", "one"), True)


def test_replicas_are_one_models_processes_and_divide_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.cli.router_options.default_threads", lambda: 5)
    path = gguf(tmp_path / "m.gguf")
    catalog = read(str(path), "--replicas", "2")
    (spec,) = catalog.specs.values()
    assert (spec.starts, spec.replicas, list(catalog.workers)) == (True, 2, ["m", "m:2"])
    found = children(tmp_path, str(path), "--replicas", "2", "--store", "/x/r.db", "--cache-disk", "/x/cache")
    assert [(one.alias, one.replica, one.threads, one.replicas) for one in found] == [
        ("m", "m", 2, 1),
        ("m", "m:2", 2, 1),
    ]
    assert [one.store for one in found] == ["/x/r-m.db", "/x/r-m:2.db"]
    assert len({one.cache_disk for one in found}) == 2
    given = read(str(path), "--replicas", "9", "--threads", "3").specs["m"]
    assert given.options == ("--threads", "3", f"--model={path}")
    assert "--threads=1" in read(str(path), "--replicas", "9").specs["m"].options


def test_a_section_has_replicas_of_its_own(tmp_path: Path) -> None:
    preset, a, b = tmp_path / "models.ini", gguf(tmp_path / "a.gguf"), gguf(tmp_path / "b.gguf")
    preset.write_text(f"[a]\nmodel = {a}\nreplicas = 3\nt = 7\n[b]\nmodel = {b}\n")
    specs = read("--models-preset", str(preset), "--replicas", "2").specs
    assert {name: spec.replicas for name, spec in specs.items()} == {"a": 3, "b": 2}
    assert [one for one in specs["a"].options if one.startswith("--threads")] == ["--threads=7"]
    assert list(read("--models-preset", str(preset)).workers) == ["a", "a:2", "a:3", "b"]
    for text in ("none", "0", "65"):
        preset.write_text(f"[a]\nmodel = {tmp_path / 'a.gguf'}\nreplicas = {text}\n")
        with pytest.raises(UsageError, match="replica"):
            read("--models-preset", str(preset))


def test_a_model_may_not_have_the_name_of_a_replica(tmp_path: Path) -> None:
    files = [str(gguf(tmp_path / f"{name}.gguf")) for name in ("a", "a:2")]
    with pytest.raises(UsageError, match="a model is called a:2, as a replica of a would be"):
        read("-m", files[0], "-m", files[1], "--replicas", "2")
