"""The options of ``pyllmcancel serve``; an option that llama-server has, too, is named as there."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from pyllmcancel.cli.chat_options import add_chat_options
from pyllmcancel.cli.draft_options import add_draft_options
from pyllmcancel.cli.llama_options import add_foreign
from pyllmcancel.cli.llama_spellings import add_spellings
from pyllmcancel.cli.logs import FORMATS
from pyllmcancel.cli.media_options import add_media_options
from pyllmcancel.cli.model_argument import add_model_argument
from pyllmcancel.cli.options import (
    add_list,
    add_option,
    add_switch,
    address_or_network,
    checked_by,
    client_seconds,
    flash_attention,
    natural,
    natural_or_auto,
    natural_or_none,
    number,
    port_number,
    positive_int,
    positive_or_auto,
    scaled_file,
    seconds,
    seconds_or_off,
    seed,
    unscaled_file,
    whole,
)
from pyllmcancel.cli.placement_options import add_placement_options
from pyllmcancel.cli.projector_options import add_projector_options
from pyllmcancel.cli.router_options import EachModel, add_router_options
from pyllmcancel.cli.storage import DAY
from pyllmcancel.cli.worker_options import add_worker_options
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.pooling import POOLINGS
from pyllmcancel.sampling import SAMPLERS, SamplingParams
from pyllmcancel.server.config import ServerConfig, Storage
from pyllmcancel.server.host_names import host_name
from pyllmcancel.server.http.web_origins import web_origin

ENGINE = EngineConfig()
SERVER = ServerConfig(engine=ENGINE)
SAMPLING = SamplingParams()
STORAGE = Storage()
LEVELS = ("debug", "info", "warning", "error")

# Each row: option, other spellings, field of SamplingParams, explanation.
SAMPLING_OPTIONS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("temp", ("--temperature",), "temperature", "temperature; 0 takes the likeliest token"),
    ("top-k", (), "top_k", "keep the k likeliest tokens; 0: all"),
    ("top-p", (), "top_p", "keep the likeliest tokens that make up this probability; 1: all"),
    ("min-p", (), "min_p", "keep tokens with at least this share of the likeliest token's probability; 0: all"),
    ("top-n-sigma", ("--top-nsigma",), "top_n_sigma", "keep logits within N standard deviations of the best; -1: off"),
    ("typical-p", ("--typical",), "typical_p", "locally typical sampling; 1: off"),
    ("xtc-probability", (), "xtc_probability", "probability of leaving out the likeliest tokens; 0: never"),
    ("xtc-threshold", (), "xtc_threshold", "minimum probability of a token that may be left out"),
    ("repeat-last-n", (), "penalty_last_n", "number of last tokens that the penalties count; 0: none, -1: all"),
    ("repeat-penalty", (), "repeat_penalty", "penalty on repeated tokens; 1: off"),
    ("presence-penalty", (), "presence_penalty", "penalty on tokens that have occurred; 0: off"),
    ("frequency-penalty", (), "frequency_penalty", "penalty on tokens for each time that they have occurred; 0: off"),
    ("dry-multiplier", (), "dry_multiplier", "penalty on continuing a sequence that has occurred (DRY); 0: off"),
    ("dry-base", (), "dry_base", "base of that penalty's growth with the sequence's length"),
    ("dry-allowed-length", (), "dry_allowed_length", "length of a repeated sequence up to which there is no penalty"),
    ("dry-penalty-last-n", (), "dry_penalty_last_n", "number of last tokens that DRY looks at; 0: none, -1: all"),
    ("dynatemp-range", (), "dynatemp_range", "range around the temperature, which then depends on entropy; 0: off"),
    ("dynatemp-exp", (), "dynatemp_exponent", "exponent of that dependence"),
    ("mirostat", (), "mirostat", "version of Mirostat, 1 or 2, which replaces truncation; 0: off"),
    ("mirostat-lr", (), "mirostat_eta", "Mirostat's learning rate"),
    ("mirostat-ent", (), "mirostat_tau", "Mirostat's target entropy"),
)


def add_all(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    # For the processes behind the one in front, through which they are reached.
    parser.add_argument("--no-greeting", dest="greets", action="store_false", help=argparse.SUPPRESS)
    for title, (text, add) in GROUPS.items():
        add(parser.add_argument_group(title, text))
    add_spellings(parser)
    add_foreign(parser)


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    text = f"GGUF file, or the name of a small model that is downloaded once: {', '.join(KNOWN)} [the packaged model];"
    text += " given several times: all of them, see docs/scale-out.md"
    add_option(group, "model", Path, None, text, also=("-m",), metavar="FILE", action=EachModel)
    text = "model of the Hugging Face hub, USER/MODEL or USER/MODEL:QUANT, downloaded once [Q4_K_M, else Q8_0]"
    add_option(group, "hf-repo", str, None, text, also=("-hf", "-hfr"), metavar="NAME")
    add_option(group, "hf-file", str, None, "name of the file in --hf-repo to load", also=("-hff",), metavar="FILE")
    text = "token for private and gated models [HF_TOKEN, or the one of `hf auth login`]"
    add_option(group, "hf-token", str, None, text, also=("-hft",), metavar="TOKEN")
    add_switch(group, "offline", False, "load the model from the cache, without network access")
    text = "the model's name in answers; of several names, separated by commas, the alphabetically first"
    add_option(group, "alias", str, None, text, also=("-a",), metavar="NAME")
    add_list(group, "tags", str, "words about the model in /v1/models, separated by commas", metavar="TAG")
    add_switch(
        group,
        "strict-model",
        SERVER.strict_model,
        "answer 404 to requests that name another model; without: serve any name",
    )
    text = "LoRA adapter, with the scale 1 for requests that choose none; may be repeated"
    add_list(group, "lora", unscaled_file, text, metavar="FILE")
    text = "LoRA adapter, with this scale for requests that choose none; may be repeated"
    add_list(group, "lora-scaled", scaled_file, text, metavar="FILE:SCALE")
    text = "begin with a scale of 0 for all LoRA adapters, until POST /lora-adapters sets it"
    add_switch(group, "lora-init-without-apply", ENGINE.lora_init_without_apply, text)
    add_projector_options(group)
    text = (
        "how a text's embedding is pooled from its tokens; auto: as the model's file says; rank: scores for /v1/rerank;"
        " none: generate text or, with --embeddings, embed each token"
    )
    add_option(group, "pooling", str, ENGINE.pooling, text, choices=POOLINGS)
    text = "refuse a model that generates text; a model that pools serves embeddings even without this option"
    add_switch(group, "embeddings", ENGINE.embeddings, text, also=("--embedding",))
    text = "rank documents for /v1/rerank: --pooling rank"
    add_switch(group, "reranking", False, text, also=("--rerank",))
    add_switch(
        group, "matryoshka", ENGINE.matryoshka, "let requests ask for fewer dimensions: the model was trained for that"
    )
    add_switch(group, "mmap", ENGINE.mmap, "map the file into memory instead of reading it")
    add_switch(group, "mlock", ENGINE.mlock, "lock the model in memory, so that it is never swapped out")


def _add_computing_options(group: argparse._ArgumentGroup) -> None:
    text = (
        f"limit of sequences that compute at once; a given number divides the context [{ENGINE.parallel}, not divided]"
    )
    add_option(group, "parallel", positive_or_auto, None, text, also=("-np",))
    text = "context of a request in tokens; with --parallel, of all requests together; 0: automatic"
    add_option(group, "ctx-size", natural, ENGINE.ctx_size, text, also=("-c",))
    text = "share one pool of cells among all requests: less memory, but answers depend on other requests"
    add_switch(group, "kv-unified", None, text, also=("-kvu",))
    text = "limit of tokens in a step; where a step cannot be interrupted, a cancel waits for its end"
    add_option(group, "ubatch-size", positive_int, ENGINE.ubatch_size, text, also=("-ub",))
    text = "llama.cpp's logical batch; here it only limits --ubatch-size, since a step is never more than one ubatch"
    add_option(group, "batch-size", positive_int, ENGINE.batch_size, text, also=("-b",))
    text = "number of compute threads; 0: one per core, and fewer while other programs keep cores busy"
    add_option(group, "threads", natural_or_auto, ENGINE.threads, text, also=("-t",))
    text = "number of compute threads for prompts; 0: as --threads"
    add_option(group, "threads-batch", natural_or_auto, ENGINE.threads_batch, text, also=("-tb",))
    types = tuple(CACHE_TYPES)
    text = f"type of the keys in the cells: {', '.join(types)}"
    add_option(group, "cache-type-k", str, ENGINE.cache_type_k, text, also=("-ctk",), choices=types, metavar="TYPE")
    text = "type of the values in the cells: one of the same"
    add_option(group, "cache-type-v", str, ENGINE.cache_type_v, text, also=("-ctv",), choices=types, metavar="TYPE")
    kinds = "|".join(FLASH_ATTENTION)
    text = "use flash attention"
    add_option(group, "flash-attn", flash_attention, ENGINE.flash_attn, text, also=("-fa",), metavar=kinds, bare="on")
    text = "start a decode step before Python has read the previous step's tokens [if most layers are offloaded]"
    add_switch(group, "steps-ahead", ENGINE.steps_ahead, text)
    text = "limit of a step's duration while a prompt and answers share it"
    add_option(group, "itl-target", seconds, ENGINE.itl_target, text, metavar="S")
    text = "limit of a step's duration that a prompt has alone"
    add_option(group, "max-step-seconds", seconds, ENGINE.max_step_seconds, text, metavar="S")
    text = (
        "number of idle prefixes to keep, besides --parallel; 0 if the context is divided, at most 1 without attention"
    )
    add_option(group, "cached-sequences", natural, ENGINE.cached_sequences, text)
    text = "memory limit for copies of idle prefixes, in MiB; 0: no copies, -1: no limit"
    add_option(group, "cache-ram", natural_or_none, ENGINE.cache_ram, text, also=("-cram",))
    text = "folder in which computed prefixes survive a restart; one server uses it at a time [prefixes are lost]"
    add_option(group, "cache-disk", Path, ENGINE.cache_disk, text, metavar="DIR")
    text = "size limit of the files in --cache-disk, in MiB; the least recently used are deleted first"
    add_option(group, "cache-disk-mib", positive_int, ENGINE.cache_disk_mib, text)


def _add_checkpoint_options(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "checkpoint-interval",
        natural,
        ENGINE.checkpoint_interval,
        "tokens between checkpoints; 0: no checkpoints",
    )
    text = "limit of checkpoints of one sequence"
    add_option(group, "ctx-checkpoints", natural, ENGINE.ctx_checkpoints, text, also=("-ctxcp", "--swa-checkpoints"))
    add_option(group, "checkpoint-mib", natural, ENGINE.checkpoint_mib, "memory limit of all checkpoints, in MiB")


def _add_request_options(group: argparse._ArgumentGroup) -> None:
    add_option(
        group,
        "max-queue",
        positive_int,
        ENGINE.max_queue,
        "limit of waiting requests per API key; further ones get 429",
    )
    add_option(group, "request-timeout", seconds, None, "deadline of every request, queue included", metavar="S")
    text = "limit of tokens of an answer, even if the request asks for more; -1: no limit"
    add_option(group, "n-predict", natural_or_none, None, text, also=("-n", "--predict"))
    text = "limit of running requests per API key; further ones wait; -1: no limit"
    add_option(group, "max-running", natural_or_none, ENGINE.max_running, text)
    text = "let a request without X-Supersede cancel older ones of its kind of endpoint, by address, user or session"
    add_option(group, "supersede", str, None, text, choices=("client-ip", "user", "session"))
    add_switch(
        group,
        "supersede-chats",
        SERVER.supersede_chats,
        "apply --supersede to chats, too; without: to completions and infill only",
    )
    text = (
        "fields of a body that have no effect: ignore them, report them in the log and in X-Ignored-Fields, or refuse"
    )
    add_option(group, "unknown-fields", str, SERVER.unknown_fields, text, choices=("ignore", "warn", "refuse"))
    text = "proxies whose X-Forwarded-For and -Host are trusted: addresses or networks, separated by commas"
    add_list(group, "trusted-proxies", address_or_network, text, metavar="ADDRESSES")


def _add_sampling_options(group: argparse._ArgumentGroup) -> None:
    for name, also, field, text in SAMPLING_OPTIONS:
        default = getattr(SAMPLING, field)
        convert = whole if isinstance(default, int) else number
        add_option(group, name, convert, None, f"{text} [{default}]", also=also)  # None: the model's file may advise
    text = f"samplers to apply, in their order, separated by semicolons [{';'.join(SAMPLERS)}]"
    add_option(group, "samplers", str, None, text, metavar="NAMES")
    add_option(group, "seed", seed, None, "seed; -1 draws one for each request", also=("-s",))


def _add_http_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "host", str, "127.0.0.1", "address to listen on; several separated by commas")
    add_option(group, "port", port_number, 8000, "port to listen on; 0 chooses a free one")
    add_option(
        group, "drain", seconds, SERVER.drain, "time after SIGTERM in which live requests may finish", metavar="S"
    )
    text = (
        "time after SIGTERM, before --drain, in which everything is served and /health says 503, so that balancers stop"
    )
    text += " sending requests. The port then stays open until the drain is over; with 0 it closes at once"
    add_option(group, "drain-delay", seconds, SERVER.drain_delay, text, metavar="S")
    text = "send a comment in a stream that has been silent for this time, so that proxies keep it open; 0: never"
    add_option(group, "sse-ping-interval", seconds_or_off, SERVER.sse_ping_interval, text, metavar="S")
    text = "time for which a stream that can be taken up again goes on without a reader, and is kept after its end"
    text += "; 0: no stream can be taken up again"
    add_option(group, "stream-keep", seconds_or_off, SERVER.stream_keep, text, metavar="S")
    text = "where /v1/responses stores responses: a file, or memory, or off [a file in XDG_STATE_HOME]"
    add_option(group, "store", str, None, text, metavar="FILE")
    text = "days without use after which a response is deleted"
    add_option(group, "store-max-age", positive_int, int(STORAGE.max_age / DAY), text, metavar="DAYS")
    text = "size limit of all stored responses, in MiB; the least recently used ones are deleted for new ones"
    add_option(group, "store-max-size", positive_int, STORAGE.max_bytes >> 20, text, metavar="MIB")
    add_switch(group, "ui", SERVER.ui, "serve the live page", also=("--webui",))
    add_switch(group, "metrics", SERVER.metrics, "serve GET /metrics")
    add_switch(group, "slots", SERVER.slots, "serve GET /slots: settings and token counts of running requests")
    text = "folder in which clients save slots by POST /slots/ID [they can be neither saved, restored nor erased]"
    add_option(group, "slot-save-path", Path, SERVER.slot_save_path, text, metavar="DIR")
    add_switch(
        group, "expose-prompts", SERVER.expose_prompts, "show texts in GET /v1/events, to whoever may see the requests"
    )
    text = "send a trace of each request by OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra [otel]"
    add_switch(group, "otel", SERVER.otel, text)
    add_option(group, "log-level", str, "info", "lowest level of records to log", choices=LEVELS)
    text = "format of the log: lines of text, or one JSON object per line"
    add_option(group, "log-format", str, "text", text, choices=FORMATS)


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    limits = SERVER.limits
    add_option(
        group,
        "max-body-mib",
        positive_int,
        limits.max_body >> 20,
        "size limit of a request's body; larger ones get 413",
    )
    text = (
        "limit of values in a body (numbers, texts, keys …); a prompt of tokens that fits the context is always"
        " accepted"
    )
    add_option(group, "max-body-values", positive_int, limits.max_body_values, text)
    text = "size limit of all bodies in work at once; those of up to 64 KiB do not count; further requests get 503"
    text += "; with several owners each may use at most as much as it leaves free for others, or one body"
    add_option(group, "max-bodies-mib", positive_int, limits.max_bodies >> 20, text)
    text = "time limit for a request's head, from its first byte or from the connection"
    add_option(group, "header-timeout", seconds, limits.header_timeout, text, metavar="S")
    add_option(group, "body-timeout", seconds, limits.body_timeout, "time limit for a request's body", metavar="S")
    text = "time after which an idle connection is closed"
    add_option(group, "keep-alive", seconds, limits.keep_alive, text, metavar="S")
    text = "time after which a client whose kernel does not answer counts as gone: at least 2; 0: never"
    add_option(group, "client-timeout", client_seconds, limits.client_timeout, text, metavar="S")
    text = "time after which a client that does not read its answer is cancelled; 0: never"
    add_option(group, "reader-stall", seconds_or_off, limits.reader_stall, text, metavar="S")
    text = "limit of readers of GET /v1/events; further ones get 503; an owner has at most as many as it leaves free"
    add_option(group, "max-event-clients", positive_int, limits.max_event_clients, text)
    text = "limit of connections; a new one closes the one that has been idle longest; 0: as file descriptors allow"
    add_option(group, "max-connections", natural, limits.max_connections, text)
    text = "limit of connections per address; 0: three quarters of --max-connections"
    add_option(group, "max-connections-per-address", natural, limits.max_connections_per_address, text)


def _add_access_options(group: argparse._ArgumentGroup) -> None:
    text = "key that clients must send; of several, separated by commas, each is an owner: see docs/cancelling.md"
    add_option(group, "api-key", str, None, text, metavar="KEY")
    text = "file of such keys, one per line as KEY or NAME:KEY; lines that begin with # are comments"
    add_option(group, "api-key-file", Path, None, text, metavar="FILE")
    text = "key that may see and cancel all owners' requests; several separated by commas"
    add_option(group, "admin-api-key", str, None, text, metavar="KEY")
    text = "other pages that may use the server: origins separated by commas, SCHEME://*, null, localhost, or * for all"
    add_list(group, "cors-origins", checked_by(web_origin), text, metavar="ORIGINS")
    text = (
        "further names of this server, besides addresses, localhost and --host: NAME or *.NAME, separated by commas,"
        " or *"
    )
    text += " for any. Requests for other names get 421. With API keys any name is served, unless this option is given"
    add_list(group, "allowed-hosts", checked_by(host_name), text, metavar="NAMES")
    add_option(group, "ssl-key-file", Path, None, "PEM file of a private key, to serve HTTPS", metavar="FILE")
    add_option(group, "ssl-cert-file", Path, None, "PEM file of that key's certificate", metavar="FILE")


GROUPS: dict[str, tuple[str, Callable[[argparse._ArgumentGroup], None]]] = {
    "model": ("The model, its name in answers, its adapters, and embeddings.", _add_model_options),
    "models": ("Several models, of which a request names one: docs/scale-out.md.", add_router_options),
    "computing": ("The context, threads, batches, and the cells' types.", _add_computing_options),
    "devices": ("For builds with a back end for GPUs: docs/gpu.md.", add_placement_options),
    "checkpoints": ("For models whose memory cannot be rolled back: recurrent, hybrid.", _add_checkpoint_options),
    "drafts": ("Tokens that are guessed, and computed several at a time: docs/drafting.md.", add_draft_options),
    "requests": ("Queues, deadlines, and how a request supersedes older ones.", _add_request_options),
    "sampling": ("Defaults for requests that do not set these fields.", _add_sampling_options),
    "conversations": ("Chat templates and reasoning.", add_chat_options),
    "server": ("Addresses, the drain, stored responses, the page, metrics, the log.", _add_http_options),
    "pictures": (
        "Where pictures and sounds come from, and their limits: docs/pictures-and-sound.md.",
        add_media_options,
    ),
    "limits": ("Limits of what one client can ask of the server.", _add_limit_options),
    "access": ("API keys, pages and names that are served, HTTPS.", _add_access_options),
    "workers": ("Servers on several machines behind one: docs/scale-out.md.", add_worker_options),
}
