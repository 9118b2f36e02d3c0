"""``serve`` with several models, or several replicas of one: which there are, and the command of each process."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyllmcancel.cli.converters import OFF, ON, positive_int, seconds_or_off
from pyllmcancel.cli.environment import LOCKS
from pyllmcancel.cli.model_argument import check_model_file
from pyllmcancel.cli.options import variable_of
from pyllmcancel.cli.parser import dashed, nearest
from pyllmcancel.config import default_threads
from pyllmcancel.errors import UsageError
from pyllmcancel.front.preset import Section, read_preset
from pyllmcancel.front.spec import Catalog, Spec, models_in
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.models import PACKAGED_NAME, packaged_model_path

MAX_REPLICAS = 64
THREADS = {"threads", "t"}  # keys of a preset
KEY_FILE = "key"  # in the folder of the sockets
# Keys of a preset that are no options of a process.
OWN_KEYS = {"load-on-startup", "pin", "replicas", "alias", "model", "m", "hf-repo", "hf", "hfr", "sleep-idle-seconds"}
# Keys of llama-server's that have no effect here.
WITHOUT_EFFECT = {"stop-timeout", "dedup-cache-models"}
# Options of the process in front, which its children do not get.
NAMES = (
    "named model models hf_repo hf_file alias host port cors_origins allowed_hosts ssl_key_file ssl_cert_file"
    " api_key api_key_file admin_api_key"
    " trusted_proxies replica store workers worker worker_url worker_key worker_ca models_dir models_preset models_max"
    " models_memory models_autoload idle_loads sleep_idle_seconds replicas worker_silence cache_disk fit_print ui"
)
OF_FRONT = frozenset(NAMES.split())
VARIABLES_OF_FRONT = [*LOCKS, *(variable_of(one.replace("_", "-")) for one in OF_FRONT)]


def serves_several(arguments: argparse.Namespace) -> bool:
    several = len(arguments.models) > 1 or arguments.replicas > 1 or arguments.sleep_idle_seconds > 0
    return several or bool(arguments.workers) or has_lists(arguments)


def has_lists(arguments: argparse.Namespace) -> bool:
    return arguments.models_dir is not None or arguments.models_preset is not None


class Sources:
    """The sources of a command line's models: the `given` arguments of ``serve``, which its `parser` has not parsed."""

    def __init__(self, arguments: argparse.Namespace, given: Sequence[str], parser: argparse.ArgumentParser) -> None:
        self._arguments = arguments
        self._parser = parser
        self._common = tuple(kept(given, parser))
        self._idle = arguments.sleep_idle_seconds or math.inf

    def read(self) -> Catalog:
        """Return the models as they are now; OSError or UsageError if they cannot be read."""
        preset = self._arguments.models_preset
        sections = {} if preset is None else read_preset(preset)
        catalog = Catalog(self._specs(dict(sections)), check_model_file)
        if not (catalog.specs or self._arguments.workers):
            raise UsageError("there is no model: neither the folder nor the preset that was given has one")
        return catalog

    def _specs(self, sections: dict[str, Section]) -> Iterator[Spec]:
        if self._single is not None:
            yield self._single
            return
        given = self._arguments
        for path in dict.fromkeys(given.models):
            yield self._spec(model_name(path), sections.pop(model_name(path), {}), path)
        if given.hf_repo is not None:
            yield self._spec(given.hf_repo, sections.pop(given.hf_repo, {}), None, given.hf_repo)
        for name, path in () if given.models_dir is None else models_in(given.models_dir):
            yield self._spec(name, sections.pop(name, {}), path)
        for name, section in sections.items():
            yield self._of_section(name, section)

    @property
    def _single(self) -> Spec | None:
        """The model of a server that serves one, which sleeps when nobody uses it."""
        given = self._arguments
        if has_lists(given) or len(given.models) + (given.hf_repo is not None) != 1:
            return None
        path = given.models[0] if given.models else None
        name = given.hf_repo if path is None else model_name(path)
        spec = self._spec(name, {"load-on-startup": "true"}, path, given.hf_repo)
        names = tuple(filter(None, (given.alias or "").split(",")))
        return replace(spec, name=names[0], aliases=(*names[1:], spec.name)) if names else spec

    def _of_section(self, name: str, section: Section) -> Spec:
        file = section.get("model") or section.get("m")
        hub = section.get("hf-repo") or section.get("hf") or section.get("hfr")
        if (file is None) == (hub is None):
            raise UsageError(f"[{name}] of --models-preset must have either model or hf-repo, or be a model's name")
        return self._spec(name, section, None if file is None else Path(file), hub)

    def _spec(self, name: str, section: Section, path: Path | None, repository: str | None = None) -> Spec:
        file = path
        if path is not None and str(path) in (*KNOWN, PACKAGED_NAME) and not path.is_file():
            file = packaged_model_path() if str(path) == PACKAGED_NAME else None
        options = (*self._options(name, section), f"--hf-repo={repository}" if path is None else f"--model={path}")
        replicas = self._replicas(name, section)
        if replicas > 1 and not (self._arguments.threads or THREADS & section.keys()):
            options = (*options, f"--threads={max(1, default_threads() // replicas)}")
        idle = section.get("sleep-idle-seconds")
        return Spec(
            name=name,
            path=file,
            options=options,
            aliases=tuple(filter(None, (one.strip() for one in section.get("alias", "").split(",")))),
            pinned=is_on(section.get("pin", "false"), f"[{name}] pin"),
            starts=is_on(section.get("load-on-startup", "false"), f"[{name}] load-on-startup"),
            idle_after=self._idle if idle is None else (seconds_or_off(idle) or math.inf),
            replicas=replicas,
        )

    def _replicas(self, name: str, section: Section) -> int:
        """Return the number of a model's processes; UsageError if the section's is none, or there are too many."""
        try:
            replicas = positive_int(section["replicas"]) if "replicas" in section else self._arguments.replicas
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"[{name}] of --models-preset: replicas {error}") from None
        if replicas > MAX_REPLICAS:
            raise UsageError(f"a model may have {MAX_REPLICAS} replicas at most, not {replicas}")
        return int(replicas)

    def _options(self, name: str, section: Section) -> list[str]:
        """Return the options of a section; those of the command line come after, and count more, as in llama-server."""
        own = [self._option(name, key, value) for key, value in section.items() if key not in OWN_KEYS | WITHOUT_EFFECT]
        return [*own, *self._common]

    def _option(self, name: str, key: str, value: str) -> str:
        known = self._parser._option_string_actions
        spellings = (f"--{dashed(key)}", f"-{key}", f"--{key.lower().replace('_', '-')}")
        option = next((one for one in spellings if one in known), None)
        if option is None:
            near = nearest(f"--{key}", known)
            raise UsageError(f"[{name}] of --models-preset: {key} is not an option of serve{near}")
        if known[option].dest in OF_FRONT:
            raise UsageError(f"[{name}] of --models-preset: {key} is an option of all models together")
        if known[option].nargs != 0:
            self._check(name, key, known[option], value)
            return f"{option}={value}" if option.startswith("--") else f"{long_name(known[option])}={value}"
        if is_on(value, f"[{name}] {key}"):
            return option
        negative = option.replace("--no-", "--") if option.startswith("--no-") else option.replace("--", "--no-")
        if negative not in known:
            raise UsageError(f"[{name}] of --models-preset: {key} cannot be off")
        return negative

    def _check(self, name: str, key: str, action: argparse.Action, value: str) -> None:
        """Raise UsageError if the option does not take this value: its process would say so only at its load."""
        try:
            self._parser._check_value(action, self._parser._get_value(action, value))
        except argparse.ArgumentError as error:
            raise UsageError(f"[{name}] of --models-preset: {key} {error.message}") from None

    def command(self, spec: Spec, socket: Path) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command of one of a model's processes, and the variables to add to its environment.

        They trust only the process in front, whose key lies beside their sockets.
        """
        store, disk = self._arguments.store, self._arguments.cache_disk
        own = [
            *("--host", str(socket), "--trusted-proxies", "unix", "--no-greeting", "--no-ui"),
            *(f"--alias={spec.name.replace(',', '-')}", "--replica", spec.replica, "--store", stored(store, spec)),
            *("--worker-key", str(socket.with_name(KEY_FILE))),
            # One server uses a folder of prefixes at a time.
            *([] if disk is None else ("--cache-disk", str(disk / f"model-{spec.replica}"))),
        ]
        environment = {"NOTIFY_SOCKET": ""}  # the front reports
        # -P: Python finds the installed package, not a checkout in which the command is run.
        return [sys.executable, "-P", "-m", "pyllmcancel", "serve", *spec.options, *own], environment


def model_name(path: Path) -> str:
    return str(path) if path.suffix.lower() != ".gguf" else path.stem


def stored(store: str | None, spec: Spec) -> str:
    """Return where a model's process stores responses: a file of its own, beside the file that was named."""
    if store is None:
        return "memory"
    if store in ("off", "memory"):
        return store
    path = Path(store)
    return str(path.with_name(f"{path.stem}-{spec.replica}{path.suffix}"))


def kept(given: Sequence[str], parser: argparse.ArgumentParser) -> Iterator[str]:
    """Iterate over the arguments that a model's process gets, too."""
    known = parser._option_string_actions
    rest = deque(dashed(one) for one in given)
    while rest:
        argument = rest.popleft()
        name, has_value, _ = argument.partition("=")
        action = known.get(name)
        if action is None:
            continue  # the argument without an option, which names a model
        own = [argument]
        # As argparse reads it: a value that may be left out is not there if an option follows.
        if not has_value and rest and (action.nargs is None or (action.nargs == "?" and rest[0][:1] != "-")):
            own.append(rest.popleft())
        if action.dest not in OF_FRONT:
            yield from own


def long_name(action: argparse.Action) -> str:
    return next(one for one in action.option_strings if one.startswith("--"))


def is_on(text: str, what: str) -> bool:
    if text.lower() not in ON + OFF:
        raise UsageError(f"{what} must be one of {', '.join(ON + OFF)}, not {text!r}")
    return text.lower() in ON


def without_front_variables() -> None:
    """Remove the variables of the process in front from the environment of those that it starts."""
    for name in VARIABLES_OF_FRONT:
        os.environ.pop(name, None)
