"""``pyllmcancel serve``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from contextlib import closing
from typing import Any

from pyllmcancel.cli import llama_options, logs, serve_models, serve_options
from pyllmcancel.cli.configuration import check_placement, engine_config, server_config
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.failures import failing
from pyllmcancel.cli.help import Formatter, add_help
from pyllmcancel.cli.keys import certificate_of, hangups_of
from pyllmcancel.cli.model_argument import fetches_of, model_to_fetch
from pyllmcancel.cli.opening import open_listeners, open_store, open_tracing
from pyllmcancel.cli.router_options import serves_several
from pyllmcancel.cli.workers import named
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.engine.loading import Loading
from pyllmcancel.engine.measuring import measured
from pyllmcancel.errors import Error, UsageError
from pyllmcancel.requests.observer import Observers
from pyllmcancel.server.http.listening import close_all
from pyllmcancel.server.running.metrics import EngineMetrics

DESCRIPTION = """\
Serve a model over HTTP, to OpenAI's clients and to llama-server's. An option that llama-server has, too, has the same
name here. Several values are separated by commas, samplers by semicolons. S stands for seconds, MIB for mebibytes.
"""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP",
        usage="%(prog)s [MODEL] [OPTIONS]",
        description=DESCRIPTION,
        allow_abbrev=False,
        add_help=False,
        formatter_class=Formatter,
    )
    add_help(parser)
    serve_options.add_all(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logs.set_up(arguments.log_format, arguments.log_level)
    llama_options.warn(arguments)
    if arguments.fit_print:
        return print_need(arguments)
    if serves_several(arguments):
        return serve_models.run(arguments)
    with failing(Error, OSError, UnicodeError):
        check_environment(arguments, os.environ)
        fetches = fetches_of(arguments)
        hangups = hangups_of(arguments)
        config = server_config(arguments)
        check_placement(config.engine.placement)
        check_placement(config.engine.draft_placement)
        certificate = certificate_of(arguments)
        tracing = open_tracing(wanted=arguments.otel)
    listeners = open_listeners(arguments)
    store = None
    config = named(config, listeners)
    metrics = EngineMetrics()
    observer = metrics if tracing is None else Observers(metrics, tracing)
    try:
        with failing(Error):
            store = open_store(config.storage, named=arguments.store is not None)
        with closing(Loading(config.engine, observer, fetches=fetches)) as loading:
            # The model loads during this import, which takes about as long as to load a small model.
            try:
                from pyllmcancel.server.running.process import serve
            except KeyboardInterrupt:
                if not loading.gives_up_soon():
                    os._exit(128 + signal.SIGINT)  # the interpreter's end would wait for the loading thread
                raise

            return serve(
                config,
                listeners,
                certificate=certificate,
                metrics=metrics,
                loading=loading,
                store=store,
                tracing=tracing,
                hangups=hangups,
            )
    finally:
        close_all(listeners)
        if store is not None:
            store.close()


def print_need(arguments: argparse.Namespace) -> int:
    """Print the memory that a model would take, as JSON."""
    with failing(Error, OSError):
        check_environment(arguments, os.environ)
        if serves_several(arguments) or model_to_fetch(arguments) is not None:
            raise UsageError("--fit-print measures one model, which must be a file")
        need = measured(engine_config(arguments), compiled_module())
    sys.stdout.write(json.dumps(need._asdict()) + "\n")
    return 0
