"""The recipes name only what exists, and agree with each other; other programs' verdicts, where they are installed."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pyllmcancel.cli import command_parser
from pyllmcancel.cli.configuration import server_config
from pyllmcancel.cli.workers import places_of, worker_key
from pyllmcancel.server.app import ROUTERS
from tests.deploy import recipes, validators
from tests.deploy.recipes import OURS, UNITS, Command, commands, manifest, option

COMMANDS = commands()


@pytest.fixture(scope="module")
def known_variables() -> set[str]:
    """Every ``PYLLMCANCEL_…`` that some option reads, by its help."""

    def helps(one: Any) -> Iterator[str]:
        for action in one._actions:
            yield str(action.help)
            if isinstance(action.choices, dict):
                for child in action.choices.values():
                    yield from helps(child)

    return set(re.findall(rf"\(env: ({OURS}\w+)\)", " ".join(helps(command_parser()))))


@pytest.fixture(scope="module")
def server() -> dict[str, Any]:
    return manifest("StatefulSet", "pyllmcancel")["spec"]["template"]["spec"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: f"{one.where} {one.arguments[:2]}")
def test_the_command_takes_it(command: Command, known_variables: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(command.environment) <= known_variables
    for name, value in command.environment.items():
        monkeypatch.setenv(name, value)
    command_parser().parse_args(command.arguments)


def test_what_the_pod_is_given_fits_together(tmp_path: Path) -> None:
    (tmp_path / "api-keys").write_text("me:a-key\n")
    (tmp_path / "worker-key").write_text("another-key\n")
    front, worker = (
        command_parser().parse_args([one.replace("/etc/pyllmcancel/keys", str(tmp_path)) for one in command.arguments])
        for command in recipes.of_manifests()
    )
    config = server_config(worker)
    assert [one.owner for one in config.api_keys] == ["me"]
    assert config.worker_key == worker_key(front) == "another-key"
    (place,) = places_of(front)
    assert place.host == manifest("StatefulSet", "pyllmcancel")["spec"]["serviceName"]
    assert place.port == worker.port


def test_all_kinds_of_recipes_are_among_them() -> None:
    places = {one.where for one in COMMANDS}
    assert {"server.yaml", "pyllmcancel@.service", "Containerfile", "deploying.md, in its text"} <= places


def test_an_option_that_does_not_exist_is_found(known_variables: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "PYLLMCANCEL_PARALEL" not in known_variables
    with pytest.raises(SystemExit):
        command_parser().parse_args(["serve", "--paralel=4"])
    assert "did you mean --parallel?" in capsys.readouterr().err


def test_the_supervisor_waits_longer_than_the_server_drains(server: dict[str, Any]) -> None:
    front, worker = recipes.of_manifests()
    drain = float(option(worker, "drain-delay")) + float(option(worker, "drain"))
    assert server["terminationGracePeriodSeconds"] >= drain + 10
    pod = manifest("Deployment", "pyllmcancel-front")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= float(option(front, "drain")) + 15
    (systemd,) = recipes.of_units()
    stop = [value for unit in UNITS for name, value in recipes.settings(unit) if name == "TimeoutStopSec"]
    assert len(stop) == len(UNITS)
    drain = sum(float(systemd.environment[f"PYLLMCANCEL_{name}"]) for name in ("DRAIN_DELAY", "DRAIN"))
    assert all(float(one.removesuffix("s")) >= drain + 10 for one in stop)


def test_probes_ask_what_answers_without_a_key(server: dict[str, Any]) -> None:
    paths = {getattr(route, "path", "") for router in ROUTERS for route in router.routes}
    (container,) = server["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "http"}
    assert "/health" in paths
    assert "/health" in recipes.CONTAINERFILE.read_text("utf-8")


def test_what_the_server_reads_and_writes_is_mounted_and_nothing_else_is_writable(server: dict[str, Any]) -> None:
    (container,) = server["containers"]
    (_, command) = recipes.of_manifests()
    mounts = {one["mountPath"]: one.get("readOnly", False) for one in container["volumeMounts"]}

    def is_read_only(file: str) -> bool:
        return next(mounts[str(folder)] for folder in PurePosixPath(file).parents if str(folder) in mounts)

    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert is_read_only(option(command, "api-key-file"))
    assert is_read_only(option(command, "worker-key"))
    assert not is_read_only(option(command, "store"))
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert not is_read_only(given["HF_HUB_CACHE"] + "/x")


def test_the_containers_user_is_the_pods(server: dict[str, Any]) -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", recipes.CONTAINERFILE.read_text("utf-8"), re.MULTILINE)
    assert user == (str(server["securityContext"]["runAsUser"]), str(server["securityContext"]["runAsGroup"]))
    assert server["securityContext"]["runAsNonRoot"]


@pytest.mark.parametrize(
    "check",
    [validators.check_units, validators.check_manifests, validators.check_balancer, validators.check_containerfile],
)
def test_other_programs_take_them(check: Any) -> None:
    try:
        check()
    except validators.Missing as reason:
        pytest.skip(str(reason))
