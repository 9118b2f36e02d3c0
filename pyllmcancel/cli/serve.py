"""``pyllmcancel serve``."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import ssl
import sys
from collections.abc import Set
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.cli import llama_options, logs, serve_models, serve_options
from pyllmcancel.cli.chat_options import chat_defaults, chat_template
from pyllmcancel.cli.draft_model_options import draft_model_settings, draft_model_to_fetch
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.help import Formatter, add_help
from pyllmcancel.cli.listening import opened
from pyllmcancel.cli.media_options import media_settings
from pyllmcancel.cli.model_argument import check_model_file, check_named, name_of
from pyllmcancel.cli.options import ON
from pyllmcancel.cli.placement_options import check_placement, placement_of
from pyllmcancel.cli.projector_options import check_projector, projector_to_fetch
from pyllmcancel.cli.router_options import Sources, serves_several
from pyllmcancel.cli.serve_options import SAMPLING_OPTIONS
from pyllmcancel.cli.storage import open_store, storage_of
from pyllmcancel.cli.tracing import open_tracing
from pyllmcancel.cli.worker_options import front_of, named, worker_key
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.engine.loading import Loading
from pyllmcancel.engine.measuring import measured
from pyllmcancel.errors import Error, InvalidRequestError, UsageError
from pyllmcancel.hub.fetching import HubModel, require_library
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.hub.names import ModelName
from pyllmcancel.hub.wheels import NamedModel
from pyllmcancel.requests.observer import Observers
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.config import ADMIN, ApiKey, Certificate, ServerConfig
from pyllmcancel.server.http.listening import close_all
from pyllmcancel.server.limits import Limits
from pyllmcancel.server.running.key_rotation import Hangups
from pyllmcancel.server.running.metrics import EngineMetrics

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]


OWNER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DESCRIPTION = """\
Serve a model over HTTP, to OpenAI's clients and to llama-server's. An option that llama-server has, too, has the same
name here. The API is described on /docs and /openapi.json.
"""


def add_parser(commands: Commands) -> None:
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
    if arguments.fit_print or serves_several(arguments):
        return print_need(arguments) if arguments.fit_print else run_models(arguments)
    try:
        check_environment(arguments, os.environ)
        model = model_to_fetch(arguments)
        draft_model = draft_model_to_fetch(arguments, offline=is_offline(arguments))
        hangups = None if arguments.api_key_file is None else Hangups(partial(all_keys, arguments))
        config = server_config(arguments)
        check_placement(config.engine.placement)
        check_placement(config.engine.draft_placement)
        certificate = certificate_of(arguments)
        tracing = open_tracing(wanted=arguments.otel)
    except (Error, OSError, UnicodeError) as error:
        sys.stderr.write(f"pyllmcancel: {worded(error)}\n")
        return 2
    listeners = opened(arguments)
    if listeners is None:
        return 1
    config = named(config, listeners)
    metrics = EngineMetrics()
    try:
        store = open_store(config.storage, named=arguments.store is not None)
    except Error as error:
        close_all(listeners)
        sys.stderr.write(f"pyllmcancel: {error}\n")
        return 2
    observer = metrics if tracing is None else Observers(metrics, tracing)
    try:
        fetched = {"fetch": model, "fetch_draft": draft_model}
        fetches: Any = {name: None if one is None else one.fetch for name, one in fetched.items()}
        fetches["fetch_projector"] = projector_to_fetch(arguments, model)
        with closing(Loading(config.engine, observer, **fetches)) as loading:
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
    except KeyboardInterrupt:
        # The signal came before the server could handle it, or the server raised it once more after it had ended.
        return 128 + signal.SIGINT
    finally:
        close_all(listeners)
        if store is not None:
            store.close()


def print_need(arguments: argparse.Namespace) -> int:
    """Print the memory that a model would take, as JSON."""
    try:
        check_environment(arguments, os.environ)
        if serves_several(arguments) or model_to_fetch(arguments) is not None:
            raise UsageError("--fit-print measures one model, which must be a file")
        need = measured(engine_config(arguments), compiled_module())
    except (Error, OSError) as error:
        sys.stderr.write(f"pyllmcancel: {worded(error)}\n")
        return 2
    sys.stdout.write(json.dumps(need._asdict()) + "\n")
    return 0


def run_models(arguments: argparse.Namespace) -> int:
    """Serve several models, each by a process of its own."""
    try:
        check_environment(arguments, os.environ)
        check_named(arguments)
        front = serve_models.in_front(arguments)
        hangups = None if arguments.api_key_file is None else Hangups(partial(all_keys, arguments))
        config = server_config(front)
        certificate = certificate_of(arguments)
        sources = Sources(arguments, arguments.given, arguments.parser)
        catalog = serve_models.checked(arguments, sources)
    except (Error, OSError, UnicodeError) as error:
        sys.stderr.write(f"pyllmcancel: {worded(error)}\n")
        return 2
    return serve_models.run(arguments, sources, catalog, config, certificate=certificate, hangups=hangups)


def server_config(arguments: argparse.Namespace) -> ServerConfig:
    """Return the server's configuration; UsageError, InvalidRequestError or OSError for an invalid option."""
    owners, admins = all_keys(arguments)
    return ServerConfig(
        engine=engine_config(arguments),
        supersede=arguments.supersede,
        supersede_chats=arguments.supersede_chats,
        trusted_proxies=arguments.trusted_proxies,
        api_keys=owners,
        admin_api_keys=admins,
        strict_model=arguments.strict_model,
        unknown_fields=arguments.unknown_fields,
        tags=arguments.tags,
        drain=arguments.drain,
        drain_delay=arguments.drain_delay,
        sampling=sampling_params(arguments),
        sampling_given=frozenset(given_sampling(arguments)),
        seed=arguments.seed,
        n_predict=arguments.n_predict,
        chat_template=chat_template(arguments),
        chat=chat_defaults(arguments),
        sse_ping_interval=arguments.sse_ping_interval,
        stream_keep=arguments.stream_keep,
        limits=limits(arguments),
        media=media_settings(arguments),
        cors_origins=arguments.cors_origins,
        bound_to=tuple(name.strip() for name in arguments.host.split(",")),
        allowed_hosts=arguments.allowed_hosts,
        storage=storage_of(arguments),
        otel=arguments.otel,
        expose_prompts=arguments.expose_prompts,
        slot_save_path=slot_folder(arguments),
        slots=arguments.slots,
        metrics=arguments.metrics,
        ui=arguments.ui,
        replica=arguments.replica,
        worker_key=worker_key(arguments),
        front=front_of(arguments),
        greets=arguments.greets,
        verbose=arguments.verbose,
    )


def slot_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of ``--slot-save-path``; UsageError if it is none."""
    folder: Path | None = arguments.slot_save_path
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--slot-save-path {folder} is not a folder")
    return folder


def model_to_fetch(arguments: argparse.Namespace) -> HubModel | NamedModel | None:
    """Return the model that has to be fetched; UsageError if its name is invalid, or a package is missing.

    None: a file is served that is on this machine.
    """
    check_named(arguments)
    offline = is_offline(arguments)
    if arguments.hf_repo_draft is not None and not offline:
        require_library()
    if arguments.hf_repo is not None:
        if arguments.model is not None:
            raise UsageError("--model and --hf-repo exclude each other")
        if not offline:
            require_library()
        return HubModel(ModelName.parse(arguments.hf_repo, arguments.hf_file), arguments.hf_token, offline=offline)
    if arguments.hf_file is not None:
        raise UsageError("--hf-file names a file of --hf-repo, which is missing")
    known = KNOWN.get(name_of(arguments))
    return None if known is None else NamedModel(known, offline=offline)


def is_offline(arguments: argparse.Namespace) -> bool:
    """Return whether models are loaded from the cache only."""
    return arguments.offline or os.environ.get("HF_HUB_OFFLINE", "").lower() in ON


def limits(arguments: argparse.Namespace) -> Limits:
    return Limits(
        max_body=arguments.max_body_mib << 20,
        max_bodies=max(arguments.max_bodies_mib, arguments.max_body_mib) << 20,
        **{name: getattr(arguments, name) for name in Limits.__slots__ if hasattr(arguments, name)},
    )


def engine_config(arguments: argparse.Namespace) -> EngineConfig:
    options = {name: getattr(arguments, name) for name in EngineConfig.__slots__ if hasattr(arguments, name)}
    options["lora"] = arguments.lora + arguments.lora_scaled
    options["model"] = None if name_of(arguments) else arguments.model
    options["placement"] = placement_of(arguments)
    options["draft_sources"] = arguments.spec_type
    options |= ranking_settings(arguments)
    check_projector(arguments)
    options |= draft_model_settings(arguments, options["placement"])
    # As in llama-server, --parallel divides the context among the slots.
    if arguments.kv_unified is None and arguments.parallel is not None and arguments.parallel > 1:
        options["kv_unified"] = False
    if arguments.parallel is None:
        del options["parallel"]
    options["alias"] = arguments.alias or arguments.hf_repo or name_of(arguments) or None
    options["named_slots"] = arguments.slot_save_path is not None
    config = EngineConfig(**options)
    for path in (config.model, *(path for path, _ in config.lora)):
        if path is not None:
            check_model_file(path)
    return config


def ranking_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of ``--reranking``; UsageError if another pooling was asked for."""
    if not arguments.reranking:
        return {}
    if arguments.pooling not in ("auto", "rank"):
        raise UsageError(f"--reranking needs --pooling rank, not {arguments.pooling}")
    return {"pooling": "rank"}


def worded(error: Exception) -> str:
    """Return the error in words: Python begins that of a file with a number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error)


def sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    """Return the defaults of requests; UsageError, which names the option, for a value that no request may have."""
    known = KNOWN.get(name_of(arguments))
    advised = {} if known is None else known.sampling
    try:
        return SamplingParams(**{**advised, **given_sampling(arguments)})
    except InvalidRequestError as error:
        field, _, rest = str(error).partition(" ")
        option = next((name for name, _, known, _ in SAMPLING_OPTIONS if known == field), None)
        raise UsageError(str(error) if option is None else f"--{option} {rest}") from None


def given_sampling(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of SamplingParams that an option sets."""
    given = {field: getattr(arguments, name.replace("-", "_")) for name, _, field, _ in SAMPLING_OPTIONS}
    if arguments.samplers is not None:
        given["samplers"] = tuple(filter(None, arguments.samplers.split(";")))
    return {field: value for field, value in given.items() if value is not None}


def all_keys(arguments: argparse.Namespace) -> tuple[tuple[ApiKey, ...], tuple[str, ...]]:
    """Return the keys of clients and of administrators, as the options and the file have them now."""
    owners = api_keys(arguments)
    return owners, admin_api_keys(arguments, {key for _, key in owners})


def api_keys(arguments: argparse.Namespace) -> tuple[ApiKey, ...]:
    found = [ApiKey.unnamed(key) for key in given_keys(arguments.api_key, "--api-key")]
    if arguments.api_key_file is not None:
        lines = map(str.strip, key_file_text(arguments.api_key_file).splitlines())
        in_file = [owned_key(line) for line in lines if line and not line.startswith("#")]
        if not in_file:
            # Whoever names a file of keys does not want an open server.
            raise UsageError(f"there is no key in --api-key-file {arguments.api_key_file}")
        found += in_file
    owners = dict[str, str]()
    for owner, key in found:
        if owners.setdefault(key, owner) != owner:
            raise UsageError(f"the owners {owners[key]} and {owner} have the same key")
    return tuple(found)


def key_file_text(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # some editors begin a file with a mark, which would become part of a key
    except UnicodeDecodeError as error:
        raise UsageError(f"--api-key-file {path} is not UTF-8: {error}") from None


def given_keys(text: str | None, option: str) -> list[str]:
    """Return the keys of an option. An empty key is an error: ``--api-key "$UNSET"`` must not open the server."""
    keys = [] if text is None else [key.strip() for key in text.split(",")]
    if not all(keys):
        raise UsageError(f"{option} has an empty key")
    if any(key != key.encode(errors="ignore").decode() for key in keys):
        raise UsageError(f"{option} is not UTF-8")
    return keys


def owned_key(line: str) -> ApiKey:
    """Split ``KEY`` or ``NAME:KEY``."""
    name, separator, key = line.partition(":")
    if not separator:
        return ApiKey.unnamed(line)
    if not OWNER_NAME.fullmatch(name) or not key.strip():
        raise UsageError(f"a line of --api-key-file must be KEY or NAME:KEY, with a NAME like {OWNER_NAME.pattern}")
    if name == ADMIN:
        raise UsageError(f"{ADMIN} is the owner name of the keys of --admin-api-key: choose another name")
    return ApiKey(name, key.strip())


def admin_api_keys(arguments: argparse.Namespace, owners_keys: Set[str]) -> tuple[str, ...]:
    keys = given_keys(arguments.admin_api_key, "--admin-api-key")
    if keys and arguments.api_key is None and arguments.api_key_file is None:
        raise UsageError(
            "--admin-api-key needs --api-key or --api-key-file: without those the server is open to everybody"
        )
    if not owners_keys.isdisjoint(keys):
        raise UsageError("a key of --admin-api-key is also an owner's key: it must be one or the other")
    return tuple(keys)


def certificate_of(arguments: argparse.Namespace) -> Certificate | None:
    key, certificate = arguments.ssl_key_file, arguments.ssl_cert_file
    if key is None and certificate is None:
        return None
    if key is None or certificate is None:
        raise UsageError("--ssl-key-file and --ssl-cert-file must be given together")
    for path in (key, certificate):
        if not path.is_file():
            raise UsageError(f"there is no file {path}")
    try:
        # A protected key would have OpenSSL ask the terminal for its password.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError:
        raise UsageError(f"{key} and {certificate} are not PEM files of a private key and its certificate") from None
    return Certificate(key, certificate)
