"""A Ray application's arguments are options of ``pyllmcancel serve``; Ray itself is not needed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyllmcancel.cli import command_parser
from pyllmcancel.errors import UsageError
from pyllmcancel.ray.application import FRONT, NOT_HERE, Arguments, app, command_line, worker_options


def test_options_go_by_their_own_names_with_dashes_or_underscores() -> None:
    given = {"ctx_size": 512, "max-queue": 7, "kv_unified": True, "ui": False, "threads": None, "lora": ["a", "b"]}
    line = command_line(given)
    assert line == ["--ctx-size=512", "--max-queue=7", "--kv-unified", "--no-ui", "--lora=a", "--lora=b"]


def test_a_models_name_is_the_model_unless_another_is_given() -> None:
    assert worker_options("smollm2", {}) == {"alias": "smollm2", "store": "memory", "model": "smollm2"}
    assert worker_options("coder", {"hf_repo": "A/B"}) == {"alias": "coder", "store": "memory", "hf-repo": "A/B"}
    assert worker_options("coder", {"model": None, "alias": "c,d", "store": "a.db"}) == {
        "alias": "c,d",
        "store": "a.db",
        "model": None,
    }


@pytest.mark.parametrize("name", NOT_HERE)
def test_options_that_a_worker_gives_itself_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} cannot be set for the workers of coder"):
        worker_options("coder", {name.replace("-", "_"): "x"})


def test_ray_finds_the_class_of_the_arguments() -> None:
    """Ray looks for a class in the annotation, so that must not be a text."""
    assert app.__annotations__["arguments"] is Arguments


def test_the_example_is_what_the_builder_and_the_commands_take() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = Path(__file__).parents[2] / "deploy" / "ray.yaml"
    for one in yaml.safe_load(file.read_text())["applications"]:
        assert one["import_path"] == "pyllmcancel.ray:app"
        arguments = Arguments.model_validate(one["args"])
        workers = [worker_options(name, given or {}) for name, given in arguments.models.items()]
        for options in (arguments.front, *workers):
            command_parser().parse_args(["serve", *command_line(options)])
        assert {each["name"] for each in one["deployments"]} <= {FRONT, *arguments.models}
