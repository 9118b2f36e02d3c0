"""The table of the options of ``pyllmcancel serve``; an option that llama-server has, too, is named as there.

From it come the parser, the variables in the environment, ``--help``, and docs/command-line.md
(`tools/describe_commands.py`). ``--help`` shows the text of a first option up to its first semicolon.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, get_args

from pyllmcancel.cli import converters as to
from pyllmcancel.cli.llama_options import add_llama_options
from pyllmcancel.cli.logs import FORMATS
from pyllmcancel.cli.model_argument import add_model_argument, each_model
from pyllmcancel.cli.opening import DAY
from pyllmcancel.cli.options import Converter, Option, Print, Row, Several, Switch, add_rows, dest_of, split
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.engine.compiled import devices
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.placement import SPLIT_MODES, Placement, described
from pyllmcancel.pooling import POOLINGS
from pyllmcancel.sampling import SAMPLERS, SamplingParams
from pyllmcancel.server.config import ChatDefaults, MediaSettings, ReasoningFormat, ServerConfig, Storage
from pyllmcancel.server.host_names import host_name
from pyllmcancel.server.http.web_origins import web_origin
from pyllmcancel.step import MOST_EXTRA_OUTPUTS

ENGINE = EngineConfig()
SERVER = ServerConfig(engine=ENGINE)
SAMPLING = SamplingParams()
STORAGE = Storage()
CHAT = ChatDefaults()
MEDIA = MediaSettings()
PLACEMENT = Placement()
LIMITS = SERVER.limits
TYPES = tuple(CACHE_TYPES)
CONFIGURATION = (PLACEMENT, CHAT, LIMITS, SERVER, ENGINE)
DEFAULTS = {name: getattr(values, name) for values in CONFIGURATION for name in type(values).__slots__}
NO_DEVICES = """\
no devices: this build computes on the CPU alone, or finds no driver
docs/building.md explains how to build for GPUs
"""


def list_devices(parser: argparse.ArgumentParser, *_: Any) -> None:
    """Print the devices, and exit."""
    sys.stdout.write("".join(f"{described(device)}\n" for device in devices()) or NO_DEVICES)
    parser.exit()


def setting(names: str, convert: Converter, text: str, **more: Any) -> Option:
    """Return an option with the default of the configuration's field of its name; None if there is no such field."""
    return Option(names, convert, DEFAULTS.get(dest_of(names)), text, **more)


def switch(names: str, text: str) -> Switch:
    return Switch(names, DEFAULTS[dest_of(names)], text)


# fmt: off
MODEL = (
    setting("--model -m FILE", Path,
            f"GGUF file, or {', '.join(KNOWN)}, a small model; may be repeated [the packaged model]", does=each_model),
    setting("--hf-repo -hf -hfr NAME", str,
            "model of the Hugging Face hub, USER/MODEL or USER/MODEL:QUANT [Q4_K_M, else Q8_0]"),
    setting("--hf-file -hff FILE", str, "file of --hf-repo to load"),
    setting("--hf-token -hft TOKEN", str, "token for private and gated models [HF_TOKEN, or `hf auth login`]"),
    Switch("--offline", False, "load models from the cache, without network access"),
    setting("--alias -a NAME", str, "the model's name in answers; of several the alphabetically first"),
    Several("--tags TAG", str, "words about the model in /v1/models"),
    switch("--strict-model", "answer 404 to requests that name another model"),
    Several("--lora FILE", lambda text: (Path(text), 1.0), "LoRA adapter with the scale 1; may be repeated"),
    Several("--lora-scaled FILE:SCALE", to.scaled_file, "LoRA adapter with this scale; may be repeated"),
    switch("--lora-init-without-apply", "begin with adapters' scales of 0"),
    setting("--mmproj -mm FILE", Path, "GGUF file of the model's projector, for pictures and sounds"),
    Switch("--mmproj-auto", True, "use the projector beside a model of --hf-repo"),
    switch("--mmproj-offload", "encode pictures on a GPU"),
    setting("--image-min-tokens N", to.natural, "minimum of a picture's tokens"),
    setting("--image-max-tokens N", to.natural, "limit of a picture's tokens"),
    setting("--media-cache-mib MIB", to.natural, "limit of encoded pictures that are kept"),
    setting("--pooling", POOLINGS, "pooling of embeddings; auto: as the file says; rank: for /v1/rerank"),
    switch("--embeddings --embedding", "refuse a model that generates text"),
    Switch("--reranking --rerank", False, "rank documents for /v1/rerank: --pooling rank"),
    switch("--matryoshka", "let requests ask for fewer dimensions"),
    switch("--mmap", "map the file into memory instead of reading it"),
    switch("--mlock", "lock the model in memory"),
)
MODELS = (
    Option("--replicas N", to.positive_int, 1, "processes of each model, which share its requests"),
    Option("--worker-silence S", to.seconds, 10.0, "silence after which a replica counts as stuck"),
    setting("--models-dir FOLDER", Path, "folder of models: GGUF files, or folders of one's files"),
    setting("--models-preset FILE", Path, "models and their options, as llama-server's INI or TOML"),
    Option("--models-max N", to.natural, 4, "limit of loaded models; 0: no limit"),
    Option("--models-memory GIB", to.gibibytes, 0.0, "limit of all loaded models' memory; 0: no limit"),
    Switch("--models-autoload", True, "load a model when a request names it"),
    Switch("--idle-loads", False, "load a model for an idle request, too, and keep it loaded"),
    Option("--sleep-idle-seconds S", to.seconds_or_off, 0.0, "idle time after which a model is unloaded; -1: never"),
)
COMPUTING = (
    Option("--parallel -np N", to.positive_or_auto, None,
           f"requests that compute at once, which divide the context if given [{ENGINE.parallel}, not divided]"),
    setting("--ctx-size -c N", to.natural, "context in tokens; 0: automatic"),
    switch("--kv-unified -kvu", "share one pool of cells, so that answers depend on other requests"),
    setting("--ubatch-size -ub N", to.positive_int, "limit of tokens in a step"),
    setting("--batch-size -b N", to.positive_int, "llama.cpp's logical batch, limits --ubatch-size"),
    setting("--threads -t N", to.natural_or_auto,
            "compute threads; 0: one per core, fewer while other programs are busy"),
    setting("--threads-batch -tb N", to.natural_or_auto, "the same for prompts; 0: as --threads"),
    setting("--cache-type-k -ctk TYPE", TYPES, f"type of the cells' keys: {', '.join(TYPES)}"),
    setting("--cache-type-v -ctv TYPE", TYPES, "type of their values, one of the same"),
    setting(f"--flash-attn -fa {'|'.join(FLASH_ATTENTION)}", to.flash_attention, "use flash attention", bare="on"),
    switch("--steps-ahead", "start a step before the last one's tokens are read [if most layers are offloaded]"),
    setting("--itl-target S", to.seconds, "limit of a step that a prompt shares with answers"),
    setting("--max-step-seconds S", to.seconds, "limit of a step that a prompt has alone"),
    setting("--cached-sequences N", to.natural, "idle prefixes to keep in cells"),
    setting("--cache-ram -cram MIB", to.natural_or_none, "limit of idle prefixes' copies; 0: no copies, -1: no limit"),
    setting("--cache-disk DIR", Path, "folder in which computed prefixes survive a restart"),
    setting("--cache-disk-mib MIB", to.positive_int,
            "size limit of that folder; the least recently used files are deleted"),
)
DEVICES = (
    setting("--n-gpu-layers -ngl --gpu-layers N", to.layers, "layers to put on devices; all; auto: as many as fit"),
    setting("--device -dev NAMES", to.device_names, "devices to use; none: the CPU alone [all GPUs]"),
    Print("--list-devices", "list the devices with their memory, and exit", list_devices),
    setting("--split-mode -sm", tuple(SPLIT_MODES), "how devices share a model; none: all on --main-gpu"),
    Option("--tensor-split -ts N,N", to.shares, "", "each device's share [in proportion to free memory]"),
    setting("--main-gpu -mg N", to.natural, "device of --split-mode none, from 0"),
    Several("--override-tensor -ot PATTERN=TYPE", to.override, "put tensors that match a regular expression there"),
    switch("--cpu-moe -cmoe", "keep all experts on the CPU"),
    setting("--n-cpu-moe -ncmoe N", to.natural, "keep the first N layers' experts on the CPU"),
    setting("--n-cpu-ffn -ncffn N", to.natural, "the same for feed-forward weights, in a model without experts"),
    switch("--kv-offload -kvo", "keep a layer's cells on its device, not in the CPU's memory"),
    switch("--op-offload", "let a device compute large batches for weights on the CPU"),
    Option("--fit -fit on|off", to.on_or_off, "on", "refuse a placement that does not fit"),
    Option("--fit-target -fitt MIB,MIB", to.margins, str(PLACEMENT.fit_target[0]),
           "memory that auto leaves free, by device"),
    Print("--fit-print", "print the memory that the model takes, and exit"),
)
CHECKPOINTS = (
    setting("--checkpoint-interval N", to.natural, "tokens between checkpoints; 0: none"),
    setting("--ctx-checkpoints -ctxcp --swa-checkpoints N", to.natural, "limit of one sequence's checkpoints"),
    setting("--checkpoint-mib MIB", to.natural, "limit of all checkpoints' memory"),
)
DRAFTS = (
    Option("--spec-type TYPES", to.draft_sources,
           ",".join(ENGINE.draft_sources), "sources of drafts: past, prediction, ngram, model, heads, or none"),
    setting("--draft-max --draft --draft-n --spec-draft-n-max N", to.natural,
            f"limit of drafted tokens in a step, at most {MOST_EXTRA_OUTPUTS}; 0: none"),
    setting("--past-answers-mib MIB", to.natural, "limit of the recent answers' memory"),
    switch("--token-healing", "let prompts end in mid-word: completions rewrite it"),
    setting("--model-draft -md --spec-draft-model FILE", Path,
            "GGUF file of a smaller model with the same vocabulary; or that of --hf-repo-draft"),
    setting("--hf-repo-draft -hfd -hfrd --spec-draft-hf NAME", str, "draft model of the hub, as --hf-repo"),
    setting("--draft-min --draft-n-min --spec-draft-n-min N", to.natural, "minimum of tokens of a draft model's draft"),
    setting("--draft-p-min --spec-draft-p-min P", to.probability, "probability below which the draft model stops"),
    Option("--threads-draft -td --spec-draft-threads N", to.natural_or_auto, ENGINE.draft_threads,
           "the draft model's compute threads; 0: as the model"),
    Option("--threads-batch-draft -tbd --spec-draft-threads-batch N", to.natural_or_auto, ENGINE.draft_threads_batch,
           "the same for prompts; 0: as --threads-draft"),
    Option("--cache-type-k-draft -ctkd --spec-draft-type-k TYPE", TYPES, ENGINE.draft_cache_type_k,
           "type of its cells' keys"),
    Option("--cache-type-v-draft -ctvd --spec-draft-type-v TYPE", TYPES, ENGINE.draft_cache_type_v,
           "type of its cells' values"),
    Option("--gpu-layers-draft -ngld --n-gpu-layers-draft --spec-draft-ngl N", to.layers, PLACEMENT.n_gpu_layers,
           "its layers on devices, as --n-gpu-layers"),
    setting("--device-draft -devd --spec-draft-device NAMES", to.device_names,
            "its devices, as --device [those of --device]"),
)
REQUESTS = (
    setting("--max-queue N", to.positive_int, "limit of a key's waiting requests; others get 429"),
    setting("--max-queue-tokens N", to.natural_or_none,
            "limit of the tokens of a key's waiting prompts; others get 429; -1: no limit"),
    switch("--refuse-late", "refuse requests that are expected to miss their deadline, by 429"),
    setting("--request-timeout S", to.seconds, "deadline of every request, queue included"),
    setting("--queue-timeout S", to.seconds, "limit of the time in the queue, after which a request gets 503"),
    setting("--idle-timeout S", to.seconds, "limit of the silence between two tokens of an answer"),
    setting("--n-predict -n --predict N", to.natural_or_none,
            "limit of an answer's tokens, whatever its request says; -1: none"),
    setting("--repetition-limit N", to.natural,
            "end answers of which this many tokens repeat themselves, unless a request says otherwise; 0: none"),
    Several("--idle-owners NAMES", str, "owners whose requests are idle unless they name a priority"),
    switch("--low-priority-first", "the lowest priority is first, as with vLLM; otherwise the highest, as with SGLang"),
    setting("--max-running N", to.natural_or_none,
            "limit of a key's running requests; further ones wait; -1: no limit"),
    setting("--supersede", ("client-ip", "user", "session"), "let a client's newer request cancel its older one"),
    switch("--supersede-chats", "apply --supersede to chats, too"),
    setting("--unknown-fields", ("ignore", "warn", "refuse"), "treatment of fields without an effect"),
    Several("--trusted-proxies ADDRESSES", to.address_or_network,
            "addresses or networks of proxies whose X-Forwarded-For and -Host are trusted"),
)
# Each row: the spellings, the field of SamplingParams, the explanation.
SAMPLING_FIELDS = (
    ("--temp --temperature N", "temperature", "temperature; 0: the likeliest token"),
    ("--top-k N", "top_k", "keep the k likeliest tokens; 0: all"),
    ("--top-p N", "top_p", "keep the likeliest tokens of this probability together; 1: all"),
    ("--min-p N", "min_p", "keep tokens of this share of the best one's probability; 0: all"),
    ("--top-n-sigma --top-nsigma N", "top_n_sigma", "keep logits within N standard deviations of the best; -1: off"),
    ("--typical-p --typical N", "typical_p", "locally typical sampling; 1: off"),
    ("--xtc-probability N", "xtc_probability", "probability of leaving out the likeliest tokens; 0: never"),
    ("--xtc-threshold N", "xtc_threshold", "minimum probability of a token that may be left out"),
    ("--repeat-last-n N", "penalty_last_n", "last tokens that the penalties count; 0: none, -1: all"),
    ("--repeat-penalty N", "repeat_penalty", "penalty on repeated tokens; 1: off"),
    ("--presence-penalty N", "presence_penalty", "penalty on tokens that have occurred; 0: off"),
    ("--frequency-penalty N", "frequency_penalty", "penalty on tokens for each occurrence; 0: off"),
    ("--dry-multiplier N", "dry_multiplier", "DRY's penalty on repeated sequences; 0: off"),
    ("--dry-base N", "dry_base", "base of its growth with the length"),
    ("--dry-allowed-length N", "dry_allowed_length", "length up to which there is none"),
    ("--dry-penalty-last-n N", "dry_penalty_last_n", "last tokens that DRY looks at; 0: none, -1: all"),
    ("--dynatemp-range N", "dynatemp_range", "range of a temperature that depends on entropy; 0: off"),
    ("--dynatemp-exp N", "dynatemp_exponent", "exponent of that dependence"),
    ("--mirostat N", "mirostat", "version of Mirostat, 1 or 2, in place of truncation; 0: off"),
    ("--mirostat-lr N", "mirostat_eta", "Mirostat's learning rate"),
    ("--mirostat-ent N", "mirostat_tau", "Mirostat's target entropy"),
)
SAMPLING_ROWS = (
    # No default: the model's file may advise another one.
    *(Option(names, to.whole if isinstance(getattr(SAMPLING, field), int) else to.number, None,
             f"{text} [{getattr(SAMPLING, field)}]") for names, field, text in SAMPLING_FIELDS),
    setting("--samplers NAMES", str, f"samplers in their order [{';'.join(SAMPLERS)}]"),
    setting("--seed -s N", to.seed, "seed; -1: one for each request"),
)
CONVERSATIONS = (
    setting("--chat-template JINJA", str, "Jinja template in place of the model's; or the name of one of llama.cpp's"),
    setting("--chat-template-file FILE", Path, "file of such a Jinja template"),
    setting("--chat-template-kwargs JSON", str, "variables of the template, as a JSON object"),
    switch("--jinja", "render the template; without: recognise it, without tools"),
    setting("--reasoning-format FORMAT", get_args(ReasoningFormat),
            "none: reasoning stays in the text; all others: in a field of its own"),
    Option("--reasoning -rea", ("on", "off", "auto"), "auto", "switch reasoning on or off; auto: as the template does"),
    setting("--reasoning-effort LEVEL", str, "effort of reasoning, if the template knows of it"),
    setting("--reasoning-budget N", to.natural_or_none, "limit of reasoning tokens; -1: no limit"),
    setting("--reasoning-budget-message TEXT", str, "text to insert where the budget ends the reasoning"),
    Switch("--reasoning-preserve", True, "show the model the reasoning of all earlier messages"),
    switch("--prefill-assistant", "continue the last message, if it is the assistant's"),
)
HTTP = (
    Option("--host HOST", str, "127.0.0.1", "addresses to listen on"),
    Option("--port N", to.port_number, 8000, "port to listen on; 0: a free one"),
    setting("--drain S", to.seconds, "time after SIGTERM in which live requests may finish"),
    setting("--drain-delay S", to.seconds, "time before that in which all is served and /health says 503"),
    setting("--sse-ping-interval S", to.seconds_or_off, "silence after which a stream gets a comment; 0: never"),
    setting("--stream-keep S", to.seconds_or_off, "time for which a stream without a reader is kept; 0: never"),
    setting("--store FILE", str,
            "where responses and batches are stored: a file, memory, or off [a file in XDG_STATE_HOME]"),
    Option("--store-max-age DAYS", to.positive_int, int(STORAGE.max_age / DAY),
           "days without use after which a response is deleted"),
    Option("--store-max-size MIB", to.positive_int, STORAGE.max_bytes >> 20,
           "size limit of responses; the least recently used are deleted"),
    switch("--ui --webui", "serve the live page"),
    switch("--metrics", "serve GET /metrics"),
    switch("--slots", "serve GET /slots"),
    setting("--slot-save-path DIR", Path, "folder in which clients save slots by POST /slots/ID [they cannot]"),
    switch("--expose-prompts", "show texts in GET /v1/events"),
    switch("--otel", "send traces by OTLP; needs the extra [otel]"),
    Option("--log-level", ("debug", "info", "warning", "error"), "info", "lowest level of records to log"),
    Option("--log-format", FORMATS, "text", "lines of text, or one JSON object per line"),
)
PICTURES = (
    Switch("--media-url", MEDIA.urls, "fetch pictures from public addresses"),
    setting("--media-path DIR", Path, "folder whose files requests may name by file:// [none]"),
    Option("--media-max-items N", to.positive_int, MEDIA.max_items, "limit of pictures and sounds in a request"),
    Option("--media-max-mib MIB", to.positive_int, MEDIA.max_bytes >> 20, "size limit of one of them"),
    Option("--media-max-pixels N", to.positive_int, MEDIA.max_pixels, "limit of a picture's width times height"),
    Option("--media-max-seconds S", to.seconds, MEDIA.max_seconds, "limit of a sound's length"),
    Option("--media-prepared-mib MIB", to.positive_int, MEDIA.max_prepared >> 20,
           "limit of what is prepared for live requests; others get 429"),
    Option("--media-timeout S", to.seconds, MEDIA.fetch_timeout, "time limit for all that a request has fetched"),
)
LIMITING = (
    Option("--max-body-mib MIB", to.positive_int, LIMITS.max_body >> 20,
           "size limit of a request's body; larger ones get 413"),
    setting("--max-body-values N", to.positive_int, "limit of values in a body, but for prompts of tokens"),
    Option("--max-bodies-mib MIB", to.positive_int, LIMITS.max_bodies >> 20,
           "size limit of all bodies over 64 KiB in work; others get 503"),
    setting("--header-timeout S", to.seconds, "time limit for a request's head"),
    setting("--body-timeout S", to.seconds, "time limit for a request's body"),
    setting("--keep-alive S", to.seconds, "time after which an idle connection is closed"),
    setting("--client-timeout S", to.client_seconds, "silence after which a client's machine is gone; 0: never"),
    setting("--reader-stall S", to.seconds_or_off, "time after which an unread answer is cancelled; 0: never"),
    setting("--max-event-clients N", to.positive_int, "limit of readers of GET /v1/events; others get 503"),
    setting("--max-connections N", to.natural,
            "limit of connections; a new one closes the longest idle one; 0: as files allow"),
    setting("--max-connections-per-address N", to.natural,
            "limit of an address's connections; 0: three quarters of all"),
)
ACCESS = (
    setting("--api-key KEY", str, "key that clients must send; of several each is an owner: docs/cancelling.md"),
    setting("--api-key-file FILE", Path, "file of keys, one per line: KEY or NAME:KEY"),
    setting("--admin-api-key KEY", str, "key that may see and cancel all owners' requests"),
    Several("--cors-origins ORIGINS", to.checked_by(web_origin),
            "other pages that may use the server: origins, SCHEME://*, null, localhost, or *"),
    Several("--allowed-hosts NAMES", to.checked_by(host_name),
            "further names of this server: NAME, *.NAME or *; others get 421"),
    setting("--ssl-key-file FILE", Path, "PEM file of a private key, to serve HTTPS"),
    setting("--ssl-cert-file FILE", Path, "PEM file of that key's certificate"),
)
WORKERS = (
    Several("--workers URLS", str, "workers to serve: http(s)://HOST:PORT, dns://NAME:PORT, or any"),
    setting("--worker URL", str, "front at which this worker registers itself: http(s)://HOST:PORT"),
    setting("--worker-url URL", str, "address of this worker for that front [the one from which it registers]"),
    setting("--replica NAME", to.replica_name, "server's name in X-Served-By [a worker's HOST:PORT]"),
    setting("--worker-key FILE", Path, "file of the key of a front and its workers"),
    setting("--worker-ca FILE", Path, "PEM file of the certificates that both trust"),
)
GROUPS: dict[str, tuple[str, tuple[Row, ...]]] = {
    "model": ("The model, its name in answers, its adapters, and embeddings.", MODEL),
    "models": ("Several models, of which a request names one: docs/scale-out.md.", MODELS),
    "computing": ("The context, threads, batches, and the cells' types.", COMPUTING),
    "devices": ("For builds with a back end for GPUs: docs/gpu.md.", DEVICES),
    "checkpoints": ("For models whose memory cannot be rolled back: recurrent, hybrid.", CHECKPOINTS),
    "drafts": ("Tokens that are guessed, and computed several at a time: docs/drafting.md.", DRAFTS),
    "requests": ("Queues, deadlines, and how a request supersedes older ones.", REQUESTS),
    "sampling": ("Defaults for requests that do not set these fields.", SAMPLING_ROWS),
    "conversations": ("Chat templates and reasoning.", CONVERSATIONS),
    "server": ("Addresses, the drain, stored responses, the page, metrics, the log.", HTTP),
    "pictures": ("Where pictures and sounds come from, and their limits: docs/pictures-and-sound.md.", PICTURES),
    "limits": ("Limits of what one client can ask of the server.", LIMITING),
    "access": ("API keys, pages and names that are served, HTTPS.", ACCESS),
    "workers": ("Servers on several machines behind one: docs/scale-out.md.", WORKERS),
}
# fmt: on
# The first name of an option for each spelling.
NAMES = {
    spelling: split(row.names)[0][0] for _, rows in GROUPS.values() for row in rows for spelling in split(row.names)[0]
}


def add_all(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    # For the processes behind the one in front, through which they are reached.
    parser.add_argument("--no-greeting", dest="greets", action="store_false", help=argparse.SUPPRESS)
    for title, (text, rows) in GROUPS.items():
        add_rows(parser.add_argument_group(title, text), rows)
    add_llama_options(parser)
