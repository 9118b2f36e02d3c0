"""The options of ``pyllmcancel serve``; where llama-server has one for the same thing, under its names."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyllmcancel.cli.chat_options import add_chat_options
from pyllmcancel.cli.llama_options import add_foreign
from pyllmcancel.cli.llama_spellings import add_spellings
from pyllmcancel.cli.logs import FORMATS
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
    port_number,
    positive_int,
    positive_or_auto,
    scaled_file,
    seconds,
    seconds_or_off,
    unscaled_file,
)
from pyllmcancel.cli.peers import add_peer_options
from pyllmcancel.cli.placement_options import add_placement_options
from pyllmcancel.cli.storage import DAY
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
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

# Option, other spellings, field of SamplingParams, explanation.
SAMPLING_OPTIONS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("temp", ("--temperature",), "temperature", "temperature; 0 takes the likeliest token"),
    ("top-k", (), "top_k", "keep the k likeliest tokens; 0: all"),
    ("top-p", (), "top_p", "keep the likeliest tokens that make up this probability; 1: all"),
    ("min-p", (), "min_p", "keep tokens at least so likely, relative to the likeliest; 0: all"),
    ("top-n-sigma", ("--top-nsigma",), "top_n_sigma", "keep logits within so many deviations of the best; -1: off"),
    ("typical-p", ("--typical",), "typical_p", "locally typical sampling; 1: off"),
    ("xtc-probability", (), "xtc_probability", "how often to leave out the likeliest tokens; 0: never"),
    ("xtc-threshold", (), "xtc_threshold", "least probability of a token to leave out"),
    ("repeat-last-n", (), "penalty_last_n", "tokens that penalties look back on; 0: none, -1: all"),
    ("repeat-penalty", (), "repeat_penalty", "penalty on repeated tokens; 1: off"),
    ("presence-penalty", (), "presence_penalty", "penalty on tokens that have occurred; 0: off"),
    ("frequency-penalty", (), "frequency_penalty", "the same, for each time that they have; 0: off"),
    ("dry-multiplier", (), "dry_multiplier", "penalty on going on with a sequence that has occurred; 0: off"),
    ("dry-base", (), "dry_base", "how the penalty grows with the sequence's length"),
    ("dry-allowed-length", (), "dry_allowed_length", "longest such sequence without a penalty"),
    ("dry-penalty-last-n", (), "dry_penalty_last_n", "tokens to look back on; 0: none, -1: all"),
    ("dynatemp-range", (), "dynatemp_range", "temperature by entropy, so far up and down; 0: off"),
    ("dynatemp-exp", (), "dynatemp_exponent", "exponent of the same"),
    ("mirostat", (), "mirostat", "Mirostat 1 or 2 instead of truncation; 0: off"),
    ("mirostat-lr", (), "mirostat_eta", "Mirostat's learning rate"),
    ("mirostat-ent", (), "mirostat_tau", "Mirostat's target entropy"),
)


def add_all(parser: argparse.ArgumentParser) -> None:
    _add_model_options(parser.add_argument_group("model"))
    _add_computing_options(parser.add_argument_group("computing"))
    add_placement_options(parser.add_argument_group("devices", "For builds with a back end for GPUs: docs/gpu.md."))
    _add_checkpoint_options(
        parser.add_argument_group("checkpoints", "For models whose memory cannot be rolled back: recurrent, hybrid …")
    )
    _add_request_options(parser.add_argument_group("requests"))
    _add_sampling_options(parser.add_argument_group("sampling", "What a request gets where it leaves these open."))
    add_chat_options(parser.add_argument_group("conversations"))
    _add_http_options(parser.add_argument_group("server"))
    _add_limit_options(parser.add_argument_group("limits", "What one client can ask of the server."))
    _add_access_options(parser.add_argument_group("access"))
    add_peer_options(parser.add_argument_group("peers", "Several servers as one: docs/scale-out.md."))
    add_spellings(parser)
    add_foreign(parser)


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    text = "GGUF file; without it the small model in the package"
    add_option(group, "model", Path, None, text, also=("-m",), metavar="FILE")
    text = (
        "model of the Hugging Face hub, USER/MODEL or USER/MODEL:QUANT, downloaded once; Q4_K_M, else Q8_0, if unsaid"
    )
    add_option(group, "hf-repo", str, None, text, also=("-hf", "-hfr"), metavar="NAME")
    add_option(group, "hf-file", str, None, "that file of it, by its name", also=("-hff",), metavar="FILE")
    text = "token for private and gated models; without it that of HF_TOKEN, or of `hf auth login`"
    add_option(group, "hf-token", str, None, text, also=("-hft",), metavar="TOKEN")
    add_switch(group, "offline", False, "take the model from the cache of the hub, and ask nothing")
    text = "the model's name in answers; several with commas: the alphabetically first is in answers"
    add_option(group, "alias", str, None, text, also=("-a",), metavar="NAME")
    add_list(group, "tags", str, "words about the model in /v1/models, with commas", metavar="TAG")
    add_switch(group, "strict-model", SERVER.strict_model, "404 for any other name; otherwise any name is served")
    add_list(group, "lora", unscaled_file, "LoRA adapter to apply; may be repeated", metavar="FILE")
    add_list(group, "lora-scaled", scaled_file, "the same, with a scale", metavar="FILE:SCALE")
    text = "how embeddings are made of tokens, of any model; auto: as the model says, and none generates"
    add_option(group, "pooling", str, ENGINE.pooling, text, choices=POOLINGS)
    text = "refuse a model that would generate; one that pools serves embeddings in any case"
    add_switch(group, "embeddings", ENGINE.embeddings, text, also=("--embedding",))
    add_switch(group, "matryoshka", ENGINE.matryoshka, "the model was trained for embeddings of fewer dimensions")
    add_switch(group, "mmap", ENGINE.mmap, "map the file into memory instead of reading it")
    add_switch(group, "mlock", ENGINE.mlock, "keep the model in memory")


def _add_computing_options(group: argparse._ArgumentGroup) -> None:
    text = f"most sequences that compute at once, among which the context is divided [{ENGINE.parallel}, not divided]"
    add_option(group, "parallel", positive_or_auto, None, text, also=("-np",))
    text = "tokens of context of a request; with --parallel, of all together; 0 chooses"
    add_option(group, "ctx-size", natural, ENGINE.ctx_size, text, also=("-c",))
    text = "one store of cells for all requests: less memory, but answers depend on other requests"
    add_switch(group, "kv-unified", None, text, also=("-kvu",))
    text = "most tokens in a step: the unit in which all is computed, and cancelled where there is no callback"
    add_option(group, "ubatch-size", positive_int, ENGINE.ubatch_size, text, also=("-ub",))
    text = "llama.cpp's logical batch: here it only bounds --ubatch-size, for a step is never more than one ubatch"
    add_option(group, "batch-size", positive_int, ENGINE.batch_size, text, also=("-b",))
    text = "compute threads; 0: one per core, fewer in steps beside other busy programs"
    add_option(group, "threads", natural_or_auto, ENGINE.threads, text, also=("-t",))
    text = "the same for prompts; 0: as --threads"
    add_option(group, "threads-batch", natural_or_auto, ENGINE.threads_batch, text, also=("-tb",))
    types = tuple(CACHE_TYPES)
    text = f"how the cells keep keys: {', '.join(types)}"
    add_option(group, "cache-type-k", str, ENGINE.cache_type_k, text, also=("-ctk",), choices=types, metavar="TYPE")
    text = "how they keep values, likewise"
    add_option(group, "cache-type-v", str, ENGINE.cache_type_v, text, also=("-ctv",), choices=types, metavar="TYPE")
    kinds = "|".join(FLASH_ATTENTION)
    text = "flash attention"
    add_option(group, "flash-attn", flash_attention, ENGINE.flash_attn, text, also=("-fa",), metavar=kinds, bare="on")
    text = "begin a decode step before Python looks at the last one's tokens [where most layers are offloaded]"
    add_switch(group, "steps-ahead", ENGINE.steps_ahead, text)
    text = "longest step a prompt may cause beside decodes"
    add_option(group, "itl-target", seconds, ENGINE.itl_target, text, metavar="S")
    text = "longest step a prompt may cause alone"
    add_option(group, "max-step-seconds", seconds, ENGINE.max_step_seconds, text, metavar="S")
    text = "idle prefixes kept, beside --parallel; none if the context is divided, at most one without attention cells"
    add_option(group, "cached-sequences", natural, ENGINE.cached_sequences, text)
    text = "most memory for copies of idle prefixes, in MiB; 0: none, -1: no limit"
    add_option(group, "cache-ram", natural_or_none, ENGINE.cache_ram, text, also=("-cram",))


def _add_checkpoint_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "checkpoint-interval", natural, ENGINE.checkpoint_interval, "tokens between two; 0: none")
    text = "most of one sequence"
    add_option(group, "ctx-checkpoints", natural, ENGINE.ctx_checkpoints, text, also=("-ctxcp", "--swa-checkpoints"))
    add_option(group, "checkpoint-mib", natural, ENGINE.checkpoint_mib, "most memory for all, in MiB")


def _add_request_options(group: argparse._ArgumentGroup) -> None:
    add_option(
        group, "max-queue", positive_int, ENGINE.max_queue, "most requests of one API key that wait; more get 429"
    )
    add_option(group, "request-timeout", seconds, None, "deadline of every request, queue included", metavar="S")
    text = "most tokens of an answer, whatever its request asks for; -1: no limit"
    add_option(group, "n-predict", natural_or_none, None, text, also=("-n", "--predict"))
    text = "most requests of one API key that run at once, the others wait; -1: no limit"
    add_option(group, "max-running", natural_or_none, ENGINE.max_running, text)
    text = "requests without X-Supersede cancel older ones of the same kind of endpoint and address, user or session"
    add_option(group, "supersede", str, None, text, choices=("client-ip", "user", "session"))
    add_switch(group, "supersede-chats", SERVER.supersede_chats, "so do chats; without it completions and infill only")
    text = (
        "a body's fields that have no effect here: refused, or told by a line in the log and X-Ignored-Fields, or not"
    )
    add_option(group, "unknown-fields", str, SERVER.unknown_fields, text, choices=("ignore", "warn", "refuse"))
    text = "proxies whose X-Forwarded-For and -Host are believed: addresses or networks, with commas"
    add_list(group, "trusted-proxies", address_or_network, text, metavar="ADDRESSES")


def _add_sampling_options(group: argparse._ArgumentGroup) -> None:
    for name, also, field, text in SAMPLING_OPTIONS:
        default = getattr(SAMPLING, field)
        add_option(group, name, type(default), default, text, also=also)
    text = f"which samplers apply, in which order, with semicolons [{';'.join(SAMPLERS)}]"
    add_option(group, "samplers", str, None, text, metavar="NAMES")
    add_option(group, "seed", natural_or_none, None, "seed; -1 draws one for each request", also=("-s",))


def _add_http_options(group: argparse._ArgumentGroup) -> None:
    add_option(group, "host", str, "127.0.0.1", "address to listen on; several with commas")
    add_option(group, "port", port_number, 8000, "port to listen on; 0 chooses a free one")
    add_option(group, "drain", seconds, SERVER.drain, "how long live requests may go on after SIGTERM", metavar="S")
    text = "before that, how long all is served while /health says 503, for balancers; then the port is open until the"
    text += " drain is over, for --peers. With 0 it is closed at once"
    add_option(group, "drain-delay", seconds, SERVER.drain_delay, text, metavar="S")
    text = "comment in a stream after so much silence, for proxies; 0: never"
    add_option(group, "sse-ping-interval", seconds_or_off, SERVER.sse_ping_interval, text, metavar="S")
    text = "file of the responses that clients may ask for later, or memory, or off [a file in XDG_STATE_HOME]"
    add_option(group, "store", str, None, text, metavar="FILE")
    text = "days after its last use until a response is forgotten"
    add_option(group, "store-max-age", positive_int, int(STORAGE.max_age / DAY), text, metavar="DAYS")
    text = "most of all responses, in MiB; those that were not used for longest make room for others"
    add_option(group, "store-max-size", positive_int, STORAGE.max_bytes >> 20, text, metavar="MIB")
    add_switch(group, "ui", SERVER.ui, "the live page", also=("--webui",))
    add_switch(group, "metrics", SERVER.metrics, "GET /metrics")
    add_switch(group, "slots", SERVER.slots, "GET /slots, which shows what others ask")
    add_switch(group, "expose-prompts", SERVER.expose_prompts, "show texts in GET /v1/events, to who sees the requests")
    text = "a trace of each request, by OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT; needs the extra [otel]"
    add_switch(group, "otel", SERVER.otel, text)
    add_option(group, "log-level", str, "info", "how much to log", choices=LEVELS)
    text = "how: lines to read, or one JSON object a line, with the facts as fields"
    add_option(group, "log-format", str, "text", text, choices=FORMATS)


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    limits = SERVER.limits
    add_option(group, "max-body-mib", positive_int, limits.max_body >> 20, "longest request body; longer ones get 413")
    text = "most numbers, texts, keys ... of a body; a prompt of tokens that fits into the context never has too many"
    add_option(group, "max-body-values", positive_int, limits.max_body_values, text)
    text = "most of all bodies that are read or worked on at once, those of up to 64 KiB not counted; more get 503"
    text += "; of several owners each has at most as much as it leaves free, or one body"
    add_option(group, "max-bodies-mib", positive_int, limits.max_bodies >> 20, text)
    text = "longest time for a request's head, from its first byte, or from the connection"
    add_option(group, "header-timeout", seconds, limits.header_timeout, text, metavar="S")
    add_option(group, "body-timeout", seconds, limits.body_timeout, "longest time for a request's body", metavar="S")
    text = "how long a connection may wait for its next request"
    add_option(group, "keep-alive", seconds, limits.keep_alive, text, metavar="S")
    text = "how long a client may be silent, its kernel too, until it has vanished: at least 2; 0: for ever"
    add_option(group, "client-timeout", client_seconds, limits.client_timeout, text, metavar="S")
    text = "how long a client may take nothing of what waits for it; 0: for ever"
    add_option(group, "reader-stall", seconds_or_off, limits.reader_stall, text, metavar="S")
    text = "most readers of GET /v1/events; more get 503; of several owners each has at most as many as it leaves free"
    add_option(group, "max-event-clients", positive_int, limits.max_event_clients, text)
    text = "most connections, of which one more closes the idlest; 0: as many as there are file descriptors for"
    add_option(group, "max-connections", natural, limits.max_connections, text)
    text = "the same for each address; 0: three quarters of all"
    add_option(group, "max-connections-per-address", natural, limits.max_connections_per_address, text)


def _add_access_options(group: argparse._ArgumentGroup) -> None:
    text = "key that clients must send; several with commas, each of which is an owner: see docs/cancelling.md"
    add_option(group, "api-key", str, None, text, metavar="KEY")
    text = "file of such keys, one in a line as KEY or NAME:KEY; lines that begin with # are comments"
    add_option(group, "api-key-file", Path, None, text, metavar="FILE")
    text = "key that sees and cancels the requests of all others; several with commas"
    add_option(group, "admin-api-key", str, None, text, metavar="KEY")
    text = (
        "pages that may use the server beside its own: origins with commas, SCHEME://*, null, localhost, or * for all"
    )
    add_list(group, "cors-origins", checked_by(web_origin), text, metavar="ORIGINS")
    text = (
        "names of this server beside addresses, localhost and those of --host: with commas, *.NAME, or * for any; other"
    )
    text += " names get 421. With API keys any name is served unless this is given"
    add_list(group, "allowed-hosts", checked_by(host_name), text, metavar="NAMES")
    add_option(group, "ssl-key-file", Path, None, "PEM file of a private key: serve HTTPS", metavar="FILE")
    add_option(group, "ssl-cert-file", Path, None, "PEM file of its certificate", metavar="FILE")
