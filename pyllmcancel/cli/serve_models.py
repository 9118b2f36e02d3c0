"""``serve`` with several models, or several replicas of one: the process in front of theirs."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import ssl
import sys
import tempfile
from pathlib import Path

from pyllmcancel.cli.configuration import server_config
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.failures import failing
from pyllmcancel.cli.keys import certificate_of, hangups_of
from pyllmcancel.cli.model_argument import check_model_file, check_named, is_of_hub
from pyllmcancel.cli.opening import open_listeners, open_store
from pyllmcancel.cli.router_options import KEY_FILE, Sources, without_front_variables
from pyllmcancel.cli.workers import places_of, worker_key
from pyllmcancel.errors import Error, UsageError
from pyllmcancel.front.spec import Catalog
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.models import PACKAGED_NAME
from pyllmcancel.server.http.listening import close_all

GIB = 1 << 30


def run(arguments: argparse.Namespace) -> int:
    """Serve the models until a signal; return the exit status."""
    with failing(Error, OSError, UnicodeError):
        check_environment(arguments, os.environ)
        check_named(arguments)
        front = in_front(arguments)
        hangups = hangups_of(arguments)
        config = server_config(front)
        certificate = certificate_of(arguments)
        sources = Sources(arguments, arguments.given, arguments.parser)
        catalog = checked(arguments, sources)
    listeners = open_listeners(arguments)
    without_front_variables()
    # Not before: these imports take a second.
    from pyllmcancel.front.app import serve_models
    from pyllmcancel.front.child import to_stderr
    from pyllmcancel.front.keeper import Keeper
    from pyllmcancel.front.remotes import Remotes
    from pyllmcancel.front.roster import Roster

    key = worker_key(arguments) or secrets.token_hex(32)
    with failing(Error):
        store = open_store(config.storage, named=arguments.store is not None)
    roster = Roster(arguments.models_max or math.inf, arguments.models_memory * GIB or math.inf)
    try:
        # Nobody else may enter it.
        with tempfile.TemporaryDirectory(prefix="pyllmcancel-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            (folder / KEY_FILE).write_text(key)
            keeper = Keeper(
                catalog,
                sources.read,
                sources.command,
                folder=folder,
                roster=roster,
                drain=config.drain,
                write=to_stderr,
                key=key,
                check=check_model_file,
                silence=arguments.worker_silence,
                autoload=arguments.models_autoload,
                idle_loads=arguments.idle_loads,
            )
            if arguments.workers:
                tls = ssl.create_default_context(cafile=arguments.worker_ca)
                keeper.remotes = Remotes(keeper, places_of(arguments), key=key, tls=tls)
            return serve_models(config, listeners, keeper, store=store, certificate=certificate, hangups=hangups)
    finally:
        close_all(listeners)


def in_front(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options as those of a server without a model; UsageError for options that need one."""
    if arguments.replica is not None:
        raise UsageError("--replica does not go with several models or replicas: each has a name of its own")
    if arguments.worker is not None:
        raise UsageError("--worker is for a server of one model, which is the worker of another one")
    worker_key(arguments), places_of(arguments)
    if sys.platform != "linux":
        raise UsageError("several models or replicas need Linux: their processes must end with this one")
    front = argparse.Namespace(**vars(arguments))
    front.model = front.hf_repo = front.hf_file = front.named = front.alias = front.worker_key = None
    front.workers = ()
    return front


def checked(arguments: argparse.Namespace, sources: Sources) -> Catalog:
    """Return the models; UsageError or OSError if there is none, or a file that was named cannot be served."""
    if arguments.models_dir is not None and not arguments.models_dir.is_dir():
        raise UsageError(f"--models-dir {arguments.models_dir} is not a folder")
    if len(arguments.models) < 2 and arguments.model is not None:
        arguments.models = (arguments.model,)  # it may be in the environment, or an argument without an option
    single = arguments.models_dir is None and arguments.models_preset is None and not arguments.workers
    if single and not arguments.models and arguments.hf_repo is None:
        arguments.models = (Path(PACKAGED_NAME),)
    for path in arguments.models:
        if str(path) not in (*KNOWN, PACKAGED_NAME) and not is_of_hub(str(path)):
            check_model_file(path)
    return sources.read()
