"""The application's builder: from its arguments to deployments of Ray Serve, for each model and for the front."""

# Not `from __future__ import annotations`: Ray checks whether the annotation of `app` is a class.

import secrets
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pyllmcancel.errors import UsageError

FRONT = "front"  # the name of its deployment
Options = dict[str, Any]
# Each replica sets these itself.
NOT_HERE = ("host", "port", "worker", "worker-url", "worker-key", "workers", "replica", "replicas")
SETTINGS: dict[str, Any] = {
    "health_check_period_s": 2.0,
    "graceful_shutdown_timeout_s": 60.0,
    "max_ongoing_requests": 1_000,
    "logging_config": {"enable_access_log": False},  # calls of our own methods
    # A model that cannot be loaded will not load at the twentieth attempt, either.
    "max_constructor_retry_count": 3,
}


class Arguments(BaseModel):
    """The arguments of an application. Options are those of ``pyllmcancel serve``, by their names.

    Attributes
    ----------
    models
        The options of each model's workers, by the model's name in requests. Without ``model`` or ``hf_repo`` among
        them the name is that of the model to load.
    front
        The options of the front: where it listens, its API keys, limits.
    """

    model_config = ConfigDict(extra="forbid")

    models: dict[str, Options | None] = Field(min_length=1)
    front: Options = {}


def app(arguments: Arguments) -> Any:
    """Build the application; UsageError, before anything is started, for names that are impossible.

    Replicas, resources and scaling are Ray's own settings of a deployment, which has its model's name.
    """
    import ray
    from ray import serve

    from pyllmcancel.ray.servers import Front, Key, Worker

    if FRONT in arguments.models:
        raise UsageError(f"no model can be called {FRONT}: that is the front's deployment")
    kept = {"name": "pyllmcancel-key", "namespace": "pyllmcancel", "get_if_exists": True, "lifetime": "detached"}
    keeper = ray.remote(num_cpus=0)(Key).options(**kept).remote(secrets.token_hex(32))
    key = ray.get(keeper.get.remote())
    models = []
    for name, given in arguments.models.items():
        line = command_line(worker_options(name, given or {}))
        models.append(serve.deployment(Worker, name=name, **SETTINGS).bind(line, key, FRONT))
    # The front is where its clients look for it.
    head = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
    front = serve.deployment(Front, name=FRONT, ray_actor_options=head, **SETTINGS)
    return front.bind(command_line(arguments.front), key, *models)


def worker_options(name: str, given: Options) -> Options:
    """Return the options of a model's workers; UsageError for those that each worker says by itself."""
    options = {key.replace("_", "-"): value for key, value in given.items()}
    if wrong := sorted(options.keys() & set(NOT_HERE)):
        raise UsageError(f"{wrong[0]} cannot be set for the workers of {name}")
    if not options.keys() & {"model", "hf-repo"}:
        options["model"] = name
    # Workers come and go, and several of a machine cannot have one file.
    return {"alias": name, "store": "memory", **options}


def command_line(options: Mapping[str, Any]) -> list[str]:
    """Return options as a command line has them; of a list, each entry is an option of its own."""
    line = []
    for key, value in options.items():
        name = key.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool):
                line.append(f"--{name}" if one else f"--no-{name}")
            elif one is not None:
                line.append(f"--{name}={one}")
    return line
