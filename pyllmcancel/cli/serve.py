"""``pyllmcancel serve``."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli.options import add_option, add_switch, natural, port_number, positive_int, seconds
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.errors import Error
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.process import serve
from pyllmcancel.server.state import ServerConfig

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULTS = EngineConfig()
SAMPLING = SamplingParams()
LEVELS = ("debug", "info", "warning", "error")


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser("serve", help="serve a model over HTTP", description=__doc__)
    model = parser.add_argument_group("model")
    add_option(model, "model", Path, None, "GGUF file; without it the small model in the package", metavar="FILE")
    add_option(model, "alias", str, None, "the model's name in answers", metavar="NAME")
    add_option(model, "n-gpu-layers", natural, DEFAULTS.n_gpu_layers, "layers to offload, in a build that has a GPU")
    add_switch(model, "mmap", DEFAULTS.mmap, "map the file into memory instead of reading it")
    add_switch(model, "mlock", DEFAULTS.mlock, "keep the model in memory")
    compute = parser.add_argument_group("computing")
    add_option(compute, "parallel", positive_int, DEFAULTS.parallel, "most sequences that compute at once")
    add_option(compute, "ctx-size", natural, DEFAULTS.ctx_size, "tokens of context, shared by all; 0 chooses")
    add_option(compute, "batch-size", positive_int, DEFAULTS.batch_size, "most tokens in a step")
    add_option(compute, "threads", natural, DEFAULTS.threads, "compute threads; 0: one per core")
    add_option(compute, "threads-batch", natural, DEFAULTS.threads_batch, "the same for prompts; 0: as --threads")
    for part in ("k", "v"):
        name, default = f"cache-type-{part}", getattr(DEFAULTS, f"cache_type_{part}")
        add_option(compute, name, str, default, "how the cells are kept", choices=tuple(CACHE_TYPES))
    add_option(compute, "flash-attn", str, DEFAULTS.flash_attn, "flash attention", choices=tuple(FLASH_ATTENTION))
    add_option(compute, "itl-target", seconds, DEFAULTS.itl_target, "longest step a prompt may cause beside decodes")
    add_option(compute, "cached-sequences", natural, DEFAULTS.cached_sequences, "idle prefixes kept, beside --parallel")
    checkpoints = parser.add_argument_group("checkpoints", "For models whose memory cannot be rolled back.")
    add_option(checkpoints, "checkpoint-interval", natural, DEFAULTS.checkpoint_interval, "tokens between two; 0: none")
    add_option(checkpoints, "ctx-checkpoints", natural, DEFAULTS.ctx_checkpoints, "most of one sequence")
    add_option(checkpoints, "checkpoint-mib", natural, DEFAULTS.checkpoint_mib, "most memory for all, in MiB")
    requests = parser.add_argument_group("requests")
    add_option(requests, "max-queue", positive_int, DEFAULTS.max_queue, "most requests that may wait; more get 429")
    add_option(requests, "request-timeout", seconds, None, "deadline of every request, queue included", metavar="S")
    add_option(
        requests,
        "session-by",
        str,
        "explicit",
        "where a session comes from when a request names none",
        choices=("explicit", "user", "client-ip"),
    )
    add_option(requests, "temp", float, SAMPLING.temperature, "temperature, when a request names none")
    add_option(requests, "top-k", int, SAMPLING.top_k, "the same")
    add_option(requests, "top-p", float, SAMPLING.top_p, "the same")
    add_option(requests, "min-p", float, SAMPLING.min_p, "the same")
    http = parser.add_argument_group("server")
    add_option(http, "host", str, "127.0.0.1", "address to listen on")
    add_option(http, "port", port_number, 8000, "port to listen on; 0 chooses a free one")
    add_option(http, "api-key", str, "", "key that clients must send; several with commas", metavar="KEY")
    add_option(http, "drain", seconds, 5.0, "how long live requests may go on after SIGTERM", metavar="S")
    add_option(http, "log-level", str, "info", "how much to log", choices=LEVELS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(
        level=arguments.log_level.upper(),
        format="%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
    )
    try:
        config = _config(arguments)
    except Error as error:
        sys.stderr.write(f"pyllmcancel: {error}\n")
        return 2
    if config.engine.model is not None and not config.engine.model.is_file():
        sys.stderr.write(f"pyllmcancel: there is no file {config.engine.model}\n")
        return 2
    return serve(config, arguments.host, arguments.port)


def _config(arguments: argparse.Namespace) -> ServerConfig:
    return ServerConfig(
        engine=EngineConfig(**_fields(arguments, DEFAULTS)),
        session_by=arguments.session_by,
        api_keys=tuple(key for key in arguments.api_key.split(",") if key),
        drain=arguments.drain,
        sampling=SamplingParams(
            temperature=arguments.temp, top_k=arguments.top_k, top_p=arguments.top_p, min_p=arguments.min_p
        ),
    )


def _fields(arguments: argparse.Namespace, defaults: EngineConfig) -> dict[str, Any]:
    names = type(defaults).__slots__
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}
