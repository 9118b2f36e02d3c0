"""A Ray application's arguments are options of ``pyllmcancel serve``; Ray itself is not needed here."""

from pathlib import Path

import pytest

from pyllmcancel.cli import command_parser
from pyllmcancel.errors import UsageError
from pyllmcancel.ray.applications import FRONT
from pyllmcancel.ray.options import NOT_HERE, checked, command_line, worker_options


def test_options_go_by_their_own_names_with_dashes_or_underscores() -> None:
    given = {"ctx_size": 512, "max-queue": 7, "kv_unified": True, "ui": False, "threads": None, "lora": ["a", "b"]}
    line = command_line(given)
    assert line == ["--ctx-size=512", "--max-queue=7", "--kv-unified", "--no-ui", "--lora=a", "--lora=b"]


def test_a_models_name_is_the_model_unless_another_is_given() -> None:
    assert worker_options("smollm2", {}) == {"alias": "smollm2", "store": "memory", "model": "smollm2"}
    assert worker_options("coder", {"hf-repo": "A/B"}) == {"alias": "coder", "store": "memory", "hf-repo": "A/B"}
    assert worker_options("coder", {"model": None, "alias": "c,d", "store": "a.db"}) == {
        "alias": "c,d",
        "store": "a.db",
        "model": None,
    }


@pytest.mark.parametrize("name", NOT_HERE)
def test_options_that_a_worker_gives_itself_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be set for the workers of a model"):
        checked({name.replace("-", "_"): "x"})


def test_the_example_is_what_the_commands_take() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = Path(__file__).parents[2] / "deploy" / "ray.yaml"
    applications = {one["name"]: one for one in yaml.safe_load(file.read_text())["applications"]}
    front = applications.pop(FRONT)
    command_parser().parse_args(["serve", *command_line(front["args"])])
    for name, one in applications.items():
        command_parser().parse_args(["serve", *command_line(worker_options(name, one.get("args", {})))])
