"""The application's builder: from its arguments to a deployment of Ray Serve."""

# Not `from __future__ import annotations`: Ray checks whether the annotation of `app` is a class.

import logging
import math
import os
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pyllmcancel.ray.versions import check_ray

logger = logging.getLogger("pyllmcancel.ray")

DEPLOYMENT = "pyllmcancel"  # its name in Ray's configuration
# The engine has a queue of its own, from which requests can be cancelled. Requests that wait in Ray's queue cannot be
# cancelled, and a cancel from another replica would wait behind them.
MAX_ONGOING = 1_000_000
# Seconds that a replica stays reachable while Ray reports its end to HAProxy (Ray's own default), and after its drain.
DEREGISTRATION, GRACE = 30.0, 15.0


class Arguments(BaseModel):
    """The arguments of an application; every other argument is an option of ``pyllmcancel serve``, by its name.

    Attributes
    ----------
    replicas
        The number of replicas. With `max_replicas`, the minimum: waiting requests and cells in use call for more.
    num_cpus, num_gpus
        The resources that Ray counts for each replica; a fraction of a GPU is allowed. By default this machine's
        processors are divided among all replicas.
    open_to_all
        Answer without API keys on every address that Ray listens on.
    """

    model_config = ConfigDict(extra="allow")

    replicas: int = Field(1, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    num_cpus: float | None = Field(None, ge=0)
    num_gpus: float = Field(0, ge=0)
    open_to_all: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """The options of ``pyllmcancel serve``."""
        return self.model_extra or {}


def app(arguments: Arguments) -> Any:
    """Build the application; UsageError, before anything is started, for arguments that are impossible."""
    check_ray()
    # Imported here, because these need Ray.
    from ray import serve

    from pyllmcancel.ray.options import command_line, served
    from pyllmcancel.ray.replica import Replica

    line = command_line(arguments.options)
    drain: float = served(line).drain
    deployment = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENT)
    return deployment.options(**settings(arguments, drain)).bind(line, open_to_all=arguments.open_to_all)


def settings(arguments: Arguments, drain: float) -> dict[str, Any]:
    """Return the settings of the deployment; settings in Ray's configuration override them."""
    from pyllmcancel.config import default_threads

    most = max(arguments.replicas, arguments.max_replicas or 0)
    cpus = max(1, default_threads() // most) if arguments.num_cpus is None else arguments.num_cpus
    deregistration = float(os.environ.get("RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", DEREGISTRATION))
    found: dict[str, Any] = {
        "max_ongoing_requests": MAX_ONGOING,
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": arguments.num_gpus},
        "graceful_shutdown_timeout_s": math.ceil(deregistration + drain + GRACE),
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 2.0,
        # A model that cannot be loaded will not load at the twentieth attempt, either.
        "max_constructor_retry_count": 3,
    }
    if arguments.max_replicas is None:
        return found | {"num_replicas": arguments.replicas}
    return found | {"autoscaling_config": autoscaling(arguments.replicas, most)}


def autoscaling(least: int, most: int) -> dict[str, Any]:
    """Return Ray's ``autoscaling_config``, with our own measure."""
    return {
        "min_replicas": least,
        "max_replicas": most,
        "upscale_delay_s": 5.0,
        "downscale_delay_s": 120.0,
        "look_back_period_s": 10.0,
        "metrics_interval_s": 2.0,
        "policy": {"policy_function": "pyllmcancel.ray.scaling:Load"},
    }
