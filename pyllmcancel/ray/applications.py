"""The builders of Ray Serve's applications: one application for the front, and one for each model.

With one application for all, new options of a model would have Ray start everything anew, the front too.
"""

from __future__ import annotations

import secrets
from typing import Any

from pyllmcancel.ray.options import checked, command_line

FRONT = "front"  # the name of the front's application
SETTINGS: dict[str, Any] = {
    "health_check_period_s": 2.0,
    "graceful_shutdown_timeout_s": 60.0,
    "max_ongoing_requests": 1_000,
    "logging_config": {"enable_access_log": False},  # calls of our own methods
    # A model that cannot be loaded will not load at the twentieth attempt, either.
    "max_constructor_retry_count": 3,
}


def front(options: dict[str, Any]) -> Any:
    """Build the front's application, which has to be called `FRONT`, from options of ``pyllmcancel serve``."""
    from ray import serve

    from pyllmcancel.ray.servers import Front

    # The front is where its clients look for it.
    head = {"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}}
    deployment = serve.deployment(Front, name=FRONT, ray_actor_options=head, **SETTINGS)
    return deployment.bind(command_line(options), shared_key())


def model(options: dict[str, Any]) -> Any:
    """Build a model's application, from the options of its workers.

    Replicas, resources and scaling are Ray's own settings of its deployment ``workers``.
    """
    from ray import serve

    from pyllmcancel.ray.servers import Worker

    return serve.deployment(Worker, name="workers", **SETTINGS).bind(checked(options), shared_key(), FRONT)


def shared_key() -> str:
    """Return the key between the front and its workers, which Ray keeps for as long as the cluster is there."""
    import ray

    from pyllmcancel.ray.servers import Key

    kept = {"name": "pyllmcancel-key", "namespace": "pyllmcancel", "get_if_exists": True, "lifetime": "detached"}
    keeper = ray.remote(num_cpus=0)(Key).options(**kept).remote(secrets.token_hex(32))
    key: str = ray.get(keeper.get.remote())
    return key
