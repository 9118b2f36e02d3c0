"""A Ray application's arguments: the options of ``pyllmcancel serve``, and what a replica cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.errors import UsageError
from pyllmcancel.ray.application import DEPLOYMENT, Arguments, app, settings
from pyllmcancel.ray.options import check_open, checked, command_line, served
from pyllmcancel.server.config import ServerConfig


def config_of(given: dict[str, Any], cpus: float = 0.0) -> ServerConfig:
    return checked(served(command_line(given)), cpus)


def test_every_option_goes_by_its_own_name_with_dashes_or_underscores() -> None:
    config = config_of({"ctx_size": 512, "parallel": "3", "max-queue": 7, "kv_unified": "true", "ui": False})
    engine = config.engine
    assert (engine.ctx_size, engine.parallel, engine.max_queue, engine.kv_unified) == (512, 3, 7, True)
    assert not config.ui


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann:secret\n")
    assert [key.owner for key in config_of({"api_key_file": str(tmp_path / "keys")}).api_keys] == ["ann"]


def test_a_list_is_an_option_that_is_given_several_times(tmp_path: Path) -> None:
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for file in files:
        file.write_bytes(b"GGUF")
    assert [path for path, _ in config_of({"lora": [str(file) for file in files]}).engine.lora] == files


def test_what_is_none_is_not_said() -> None:
    assert command_line({"model": None}) == []


def test_responses_are_stored_in_memory_for_replicas_come_and_go() -> None:
    storage = config_of({}).storage
    assert storage is not None
    assert storage.path is None


@pytest.mark.parametrize(("given", "cpus", "threads"), [({}, 3.0, 3), ({}, 0.5, 0), ({"threads": 2}, 8.0, 2)])
def test_a_replica_computes_with_the_processors_that_it_was_given(
    given: dict[str, Any], cpus: float, threads: int
) -> None:
    assert config_of(given, cpus).engine.threads == threads


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ctx_siz": 1}, "did you mean --ctx-size?"),
        ({"port": 80}, "http_options.port"),
        ({"ssl_key_file": "x"}, "http_options.ssl_keyfile"),
        ({"peers": "http://10.0.0.1:8000"}, "Ray knows the replicas"),
        ({"drain_delay": 5}, "MIN_DRAINING_PERIOD_S"),
        ({"ui": "perhaps"}, "ui must be true or false, not 'perhaps'"),
        ({"supersede": "client-ip"}, "do not pass on clients' addresses"),
        ({"trusted_proxies": "10.0.0.0/8"}, "do not pass on clients' addresses"),
        ({"store": "responses.db"}, "memory or off"),
        ({"parallel": "many"}, "must be a whole number, not 'many'"),
        ({"model": "/no/such/file.gguf"}, "there is no file /no/such/file.gguf"),
    ],
)
def test_what_cannot_be_is_told(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("?", r"\?")):
        config_of(given)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", None])
def test_strangers_are_not_answered_unless_that_is_said(host: str | None) -> None:
    with pytest.raises(UsageError, match="there is no API key"):
        check_open(host, config_of({}), open_to_all=False)
    check_open(host, config_of({}), open_to_all=True)
    check_open(host, config_of({"api_key": "secret"}), open_to_all=False)


def test_this_machine_is_answered() -> None:
    check_open("127.0.0.1", config_of({}), open_to_all=False)


def test_an_application_has_a_fixed_number_of_replicas() -> None:
    found = settings(Arguments.model_validate({"replicas": "3", "num_gpus": "0.5", "num_cpus": 2}), drain=5.0)
    assert found["num_replicas"] == 3
    assert found["ray_actor_options"] == {"num_cpus": 2.0, "num_gpus": 0.5}
    assert "autoscaling_config" not in found


def test_or_one_that_follows_the_load() -> None:
    found = settings(Arguments(replicas=2, max_replicas=8), drain=5.0)
    scaling = found["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 8)
    assert "num_replicas" not in found


def test_the_drain_fits_into_the_time_that_ray_gives_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "7")
    assert settings(Arguments(), drain=60.0)["graceful_shutdown_timeout_s"] > 7 + 60


def test_ray_finds_the_class_of_the_arguments() -> None:
    """It looks for a class in the annotation, so that must not be a text."""
    assert app.__annotations__["arguments"] is Arguments


def test_the_examples_are_what_the_builder_takes() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for file in sorted((Path(__file__).parents[2] / "deploy").glob("ray*.yaml")):
        for one in yaml.safe_load(file.read_text())["applications"]:
            assert one["import_path"] == "pyllmcancel.ray:app"
            served(command_line(Arguments.model_validate(one["args"]).options))
            assert {each["name"] for each in one.get("deployments", ())} <= {DEPLOYMENT}
