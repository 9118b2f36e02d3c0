"""The content of ``deploy/``, read as its readers read it: the commands, their environments, the manifests."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = DEPLOY / "Containerfile"
UNITS = tuple(sorted((DEPLOY / "systemd").glob("*.service")))
DROP_INS = tuple(sorted((DEPLOY / "systemd").glob("*.conf")))
MANIFESTS = tuple(sorted((DEPLOY / "kubernetes").glob("*.yaml")))
PAGES = (ROOT / "docs" / "deploying.md",)
BALANCER_CONFIG = DEPLOY / "haproxy.cfg"
PROGRAM = "pyllmcancel"
OURS = "PYLLMCANCEL_"


@dataclass(frozen=True)
class Command:
    """``pyllmcancel`` with these arguments, in this environment."""

    where: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def commands() -> list[Command]:
    return [*of_manifests(), *of_units(), of_container(), *of_texts()]


# -- Kubernetes -------------------------------------------------------------------------------------------------------


def manifests() -> list[tuple[Path, dict[str, Any]]]:
    return [(path, one) for path in MANIFESTS for one in yaml.safe_load_all(path.read_text("utf-8")) if one]


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (one for _, one in manifests() if one["kind"] == kind and one["metadata"]["name"] == name)
    return found


def containers() -> Iterator[tuple[Path, dict[str, Any]]]:
    for path, one in manifests():
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield from ((path, container) for container in one["spec"]["template"]["spec"]["containers"])


def of_manifests() -> Iterator[Command]:
    for path, container in containers():
        if container["image"].startswith(f"{PROGRAM}:"):
            given = {one["name"]: one.get("value", "from elsewhere") for one in container.get("env", ())}
            # What Kubernetes fills in.
            arguments = [re.sub(r"\$\(\w+\)", "filled-in", one) for one in container["args"]]
            yield Command(path.name, tuple(arguments), ours(given))


# -- systemd ----------------------------------------------------------------------------------------------------------


def settings(unit: Path) -> list[tuple[str, str]]:
    pairs = (line.split("=", 1) for line in unit.read_text("utf-8").splitlines() if re.match(r"\w+=", line))
    return [(name, value) for name, value in pairs]


def of_units() -> Iterator[Command]:
    for unit in UNITS:
        for name, value in settings(unit):
            program, *arguments = shlex.split(value) if name.startswith("Exec") else [""]
            if program.endswith(f"/{PROGRAM}"):
                given = dict(two.split("=", 1) for one, two in settings(unit) if one == "Environment")
                given |= variables(DEPLOY / "systemd" / "pyllmcancel.env")
                yield Command(unit.name, tuple(arguments), ours(given))


def variables(file: Path) -> dict[str, str]:
    """Return the variables of an EnvironmentFile, including those that are commented out."""
    return dict(re.findall(r"^#?([A-Z_]+)=(.*)$", file.read_text("utf-8"), re.MULTILINE))


# -- container --------------------------------------------------------------------------------------------------------


def of_container() -> Command:
    text = CONTAINERFILE.read_text("utf-8").replace("\\\n", " ")
    (default,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    given = dict(re.findall(r"([A-Z_]+)=(\S+)", " ".join(re.findall(r"^ENV (.*)$", text, re.MULTILINE))))
    return Command(CONTAINERFILE.name, tuple(json.loads(default)), ours(given))


# -- comments and pages -----------------------------------------------------------------------------------------------


def of_texts() -> Iterator[Command]:
    """Lines that begin with the command, in comments of the recipes and in the page's code."""
    for path in (*UNITS, *MANIFESTS, CONTAINERFILE, *PAGES):
        text = re.sub(r"^# {0,3}", "", path.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
        for line in text.splitlines():
            found = re.match(r"(?:\S*/)?pyllmcancel (?P<rest>(?:serve|models) [^|>#`]*)", line.strip())
            if found is not None:
                yield Command(f"{path.name}, in its text", tuple(shlex.split(found["rest"])))
        for name, value in re.findall(rf"\b({OURS}[A-Z_]+)=([^\s`]+)", text) if path in PAGES else ():
            yield Command(f"{path.name}, in its text", ("serve",), {name: value})


def ours(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(OURS)}


def option(command: Command, name: str) -> str:
    """The value of ``--name=VALUE`` or ``--name VALUE``."""
    for one, following in pairwise((*command.arguments, "")):
        if one == f"--{name}":
            return following
        if one.startswith(f"--{name}="):
            return one.partition("=")[2]
    raise LookupError(name)
