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
from pyllmcancel.cli.options import Option, Print, Row, Several, Switch, add_rows, split
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.engine.compiled import devices
from pyllmcancel.hub.known import KNOWN
from pyllmcancel.placement import SPLIT_MODES, Placement, described
from pyllmcancel.pooling import POOLINGS
from pyllmcancel.sampling import SAMPLERS, SamplingParams
from pyllmcancel.server.config import ChatDefaults, ReasoningFormat, ServerConfig, Storage
from pyllmcancel.server.host_names import host_name
from pyllmcancel.server.http.web_origins import web_origin
from pyllmcancel.server.media.settings import MediaSettings
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
NO_DEVICES = """\
no devices: this build computes on the CPU alone, or finds no driver
docs/building.md explains how to build for GPUs
"""


def list_devices(parser: argparse.ArgumentParser, *_: Any) -> None:
    """Print the devices, and exit."""
    sys.stdout.write("".join(f"{described(device)}\n" for device in devices()) or NO_DEVICES)
    parser.exit()


# fmt: off
MODEL = (
    Option("--model -m FILE", Path, None,
           f"GGUF file, or {', '.join(KNOWN)}, a small model; may be repeated [the packaged model]",
           does=each_model),
    Option("--hf-repo -hf -hfr NAME", str, None,
           "model of the Hugging Face hub, USER/MODEL or USER/MODEL:QUANT [Q4_K_M, else Q8_0]"),
    Option("--hf-file -hff FILE", str, None, "file of --hf-repo to load"),
    Option("--hf-token -hft TOKEN", str, None,
           "token for private and gated models [HF_TOKEN, or `hf auth login`]"),
    Switch("--offline", False, "load models from the cache, without network access"),
    Option("--alias -a NAME", str, None,
           "the model's name in answers; of several the alphabetically first"),
    Several("--tags TAG", str, "words about the model in /v1/models"),
    Switch("--strict-model", SERVER.strict_model, "answer 404 to requests that name another model"),
    Several("--lora FILE", lambda text: (Path(text), 1.0), "LoRA adapter with the scale 1; may be repeated"),
    Several("--lora-scaled FILE:SCALE", to.scaled_file, "LoRA adapter with this scale; may be repeated"),
    Switch("--lora-init-without-apply", ENGINE.lora_init_without_apply,
           "begin with adapters' scales of 0"),
    Option("--mmproj -mm FILE", Path, None, "GGUF file of the model's projector, for pictures and sounds"),
    Switch("--mmproj-auto", True, "use the projector beside a model of --hf-repo"),
    Switch("--mmproj-offload", ENGINE.mmproj_offload, "encode pictures on a GPU"),
    Option("--image-min-tokens N", to.natural, None,
           "minimum of a picture's tokens"),
    Option("--image-max-tokens N", to.natural, None, "limit of a picture's tokens"),
    Option("--media-cache-mib MIB", to.natural, ENGINE.media_cache_mib,
           "limit of encoded pictures that are kept"),
    Option("--pooling", POOLINGS, ENGINE.pooling,
           "pooling of embeddings; auto: as the file says; rank: for /v1/rerank"),
    Switch("--embeddings --embedding", ENGINE.embeddings, "refuse a model that generates text"),
    Switch("--reranking --rerank", False, "rank documents for /v1/rerank: --pooling rank"),
    Switch("--matryoshka", ENGINE.matryoshka,
           "let requests ask for fewer dimensions"),
    Switch("--mmap", ENGINE.mmap, "map the file into memory instead of reading it"),
    Switch("--mlock", ENGINE.mlock, "lock the model in memory"),
)
MODELS = (
    Option("--replicas N", to.positive_int, 1, "processes of each model, which share its requests"),
    Option("--worker-silence S", to.seconds, 10.0,
           "silence after which a replica counts as stuck"),
    Option("--models-dir FOLDER", Path, None, "folder of models: GGUF files, or folders of one's files"),
    Option("--models-preset FILE", Path, None, "models and their options, as llama-server's INI or TOML"),
    Option("--models-max N", to.natural, 4, "limit of loaded models; 0: no limit"),
    Option("--models-memory GIB", to.gibibytes, 0.0, "limit of all loaded models' memory; 0: no limit"),
    Switch("--models-autoload", True, "load a model when a request names it"),
    Switch("--idle-loads", False, "load a model for an idle request, too, and keep it loaded"),
    Option("--sleep-idle-seconds S", to.seconds_or_off, 0.0,
           "idle time after which a model is unloaded; -1: never"),
)
COMPUTING = (
    Option("--parallel -np N", to.positive_or_auto, None,
           f"requests that compute at once, which divide the context if given [{ENGINE.parallel}, not divided]"),
    Option("--ctx-size -c N", to.natural, ENGINE.ctx_size,
           "context in tokens; 0: automatic"),
    Switch("--kv-unified -kvu", None, "share one pool of cells, so that answers depend on other requests"),
    Option("--ubatch-size -ub N", to.positive_int, ENGINE.ubatch_size, "limit of tokens in a step"),
    Option("--batch-size -b N", to.positive_int, ENGINE.batch_size, "llama.cpp's logical batch, limits --ubatch-size"),
    Option("--threads -t N", to.natural_or_auto, ENGINE.threads,
           "compute threads; 0: one per core, fewer while other programs are busy"),
    Option("--threads-batch -tb N", to.natural_or_auto, ENGINE.threads_batch, "the same for prompts; 0: as --threads"),
    Option("--cache-type-k -ctk TYPE", TYPES, ENGINE.cache_type_k, f"type of the cells' keys: {', '.join(TYPES)}"),
    Option("--cache-type-v -ctv TYPE", TYPES, ENGINE.cache_type_v, "type of their values, one of the same"),
    Option(f"--flash-attn -fa {'|'.join(FLASH_ATTENTION)}", to.flash_attention, ENGINE.flash_attn,
           "use flash attention", bare="on"),
    Switch("--steps-ahead", ENGINE.steps_ahead,
           "start a step before the last one's tokens are read [if most layers are offloaded]"),
    Option("--itl-target S", to.seconds, ENGINE.itl_target, "limit of a step that a prompt shares with answers"),
    Option("--max-step-seconds S", to.seconds, ENGINE.max_step_seconds, "limit of a step that a prompt has alone"),
    Option("--cached-sequences N", to.natural, ENGINE.cached_sequences,
           "idle prefixes to keep in cells"),
    Option("--cache-ram -cram MIB", to.natural_or_none, ENGINE.cache_ram,
           "limit of idle prefixes' copies; 0: no copies, -1: no limit"),
    Option("--cache-disk DIR", Path, ENGINE.cache_disk, "folder in which computed prefixes survive a restart"),
    Option("--cache-disk-mib MIB", to.positive_int, ENGINE.cache_disk_mib,
           "size limit of that folder; the least recently used files are deleted"),
)
DEVICES = (
    Option("--n-gpu-layers -ngl --gpu-layers N", to.layers, PLACEMENT.n_gpu_layers,
           "layers to put on devices; all; auto: as many as fit"),
    Option("--device -dev NAMES", to.device_names, None,
           "devices to use; none: the CPU alone [all GPUs]"),
    Print("--list-devices", "list the devices with their memory, and exit", list_devices),
    Option("--split-mode -sm", tuple(SPLIT_MODES), PLACEMENT.split_mode,
           "how devices share a model; none: all on --main-gpu"),
    Option("--tensor-split -ts N,N", to.shares, "",
           "each device's share [in proportion to free memory]"),
    Option("--main-gpu -mg N", to.natural, PLACEMENT.main_gpu, "device of --split-mode none, from 0"),
    Several("--override-tensor -ot PATTERN=TYPE", to.override,
            "put tensors that match a regular expression there"),
    Switch("--cpu-moe -cmoe", PLACEMENT.cpu_moe, "keep all experts on the CPU"),
    Option("--n-cpu-moe -ncmoe N", to.natural, PLACEMENT.n_cpu_moe, "keep the first N layers' experts on the CPU"),
    Option("--n-cpu-ffn -ncffn N", to.natural, PLACEMENT.n_cpu_ffn,
           "the same for feed-forward weights, in a model without experts"),
    Switch("--kv-offload -kvo", PLACEMENT.kv_offload, "keep a layer's cells on its device, not in the CPU's memory"),
    Switch("--op-offload", PLACEMENT.op_offload, "let a device compute large batches for weights on the CPU"),
    Option("--fit -fit on|off", to.on_or_off, "on", "refuse a placement that does not fit"),
    Option("--fit-target -fitt MIB,MIB", to.margins, str(PLACEMENT.fit_target[0]),
           "memory that auto leaves free, by device"),
    Print("--fit-print", "print the memory that the model takes, and exit"),
)
CHECKPOINTS = (
    Option("--checkpoint-interval N", to.natural, ENGINE.checkpoint_interval, "tokens between checkpoints; 0: none"),
    Option("--ctx-checkpoints -ctxcp --swa-checkpoints N", to.natural, ENGINE.ctx_checkpoints,
           "limit of one sequence's checkpoints"),
    Option("--checkpoint-mib MIB", to.natural, ENGINE.checkpoint_mib, "limit of all checkpoints' memory"),
)
DRAFTS = (
    Option("--spec-type TYPES", to.draft_sources, ",".join(ENGINE.draft_sources),
           "sources of drafts: past, prediction, ngram, model, heads, or none"),
    Option("--draft-max --draft --draft-n --spec-draft-n-max N", to.natural, ENGINE.draft_max,
           f"limit of drafted tokens in a step, at most {MOST_EXTRA_OUTPUTS}; 0: none"),
    Option("--past-answers-mib MIB", to.natural, ENGINE.past_answers_mib, "limit of the recent answers' memory"),
    Switch("--token-healing", ENGINE.token_healing, "let prompts end in mid-word: completions rewrite it"),
    Option("--model-draft -md --spec-draft-model FILE", Path, None,
           "GGUF file of a smaller model with the same vocabulary; or that of --hf-repo-draft"),
    Option("--hf-repo-draft -hfd -hfrd --spec-draft-hf NAME", str, None, "draft model of the hub, as --hf-repo"),
    Option("--draft-min --draft-n-min --spec-draft-n-min N", to.natural, ENGINE.draft_min,
           "minimum of tokens of a draft model's draft"),
    Option("--draft-p-min --spec-draft-p-min P", to.probability, ENGINE.draft_p_min,
           "probability below which the draft model stops"),
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
    Option("--device-draft -devd --spec-draft-device NAMES", to.device_names, None,
           "its devices, as --device [those of --device]"),
)
REQUESTS = (
    Option("--max-queue N", to.positive_int, ENGINE.max_queue, "limit of a key's waiting requests; others get 429"),
    Option("--max-queue-tokens N", to.natural_or_none, None,
           "limit of the tokens of a key's waiting prompts; others get 429; -1: no limit"),
    Switch("--refuse-late", ENGINE.refuse_late, "refuse requests that are expected to miss their deadline, by 429"),
    Option("--request-timeout S", to.seconds, None, "deadline of every request, queue included"),
    Option("--queue-timeout S", to.seconds, None, "limit of the time in the queue, after which a request gets 503"),
    Option("--idle-timeout S", to.seconds, None, "limit of the silence between two tokens of an answer"),
    Option("--n-predict -n --predict N", to.natural_or_none, None,
           "limit of an answer's tokens, whatever its request says; -1: none"),
    Option("--repetition-limit N", to.natural, SERVER.repetition_limit,
           "end answers of which this many tokens repeat themselves, unless a request says otherwise; 0: none"),
    Several("--idle-owners NAMES", str, "owners whose requests are idle unless they name a priority"),
    Switch("--low-priority-first", SERVER.low_priority_first,
           "the lowest priority is first, as with vLLM; otherwise the highest, as with SGLang"),
    Option("--max-running N", to.natural_or_none, ENGINE.max_running,
           "limit of a key's running requests; further ones wait; -1: no limit"),
    Option("--supersede", ("client-ip", "user", "session"), None,
           "let a client's newer request cancel its older one"),
    Switch("--supersede-chats", SERVER.supersede_chats, "apply --supersede to chats, too"),
    Option("--unknown-fields", ("ignore", "warn", "refuse"), SERVER.unknown_fields,
           "treatment of fields without an effect"),
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
    Option("--samplers NAMES", str, None, f"samplers in their order [{';'.join(SAMPLERS)}]"),
    Option("--seed -s N", to.seed, None, "seed; -1: one for each request"),
)
CONVERSATIONS = (
    Option("--chat-template JINJA", str, None,
           "Jinja template in place of the model's; or the name of one of llama.cpp's"),
    Option("--chat-template-file FILE", Path, None, "file of such a Jinja template"),
    Option("--chat-template-kwargs JSON", str, None, "variables of the template, as a JSON object"),
    Switch("--jinja", CHAT.jinja, "render the template; without: recognise it, without tools"),
    Option("--reasoning-format FORMAT", get_args(ReasoningFormat), CHAT.reasoning_format,
           "none: reasoning stays in the text; all others: in a field of its own"),
    Option("--reasoning -rea", ("on", "off", "auto"), "auto",
           "switch reasoning on or off; auto: as the template does"),
    Option("--reasoning-effort LEVEL", str, None, "effort of reasoning, if the template knows of it"),
    Option("--reasoning-budget N", to.natural_or_none, None, "limit of reasoning tokens; -1: no limit"),
    Option("--reasoning-budget-message TEXT", str, "", "text to insert where the budget ends the reasoning"),
    Switch("--reasoning-preserve", True, "show the model the reasoning of all earlier messages"),
    Switch("--prefill-assistant", CHAT.prefill_assistant, "continue the last message, if it is the assistant's"),
)
HTTP = (
    Option("--host HOST", str, "127.0.0.1", "addresses to listen on"),
    Option("--port N", to.port_number, 8000, "port to listen on; 0: a free one"),
    Option("--drain S", to.seconds, SERVER.drain, "time after SIGTERM in which live requests may finish"),
    Option("--drain-delay S", to.seconds, SERVER.drain_delay,
           "time before that in which all is served and /health says 503"),
    Option("--sse-ping-interval S", to.seconds_or_off, SERVER.sse_ping_interval,
           "silence after which a stream gets a comment; 0: never"),
    Option("--stream-keep S", to.seconds_or_off, SERVER.stream_keep,
           "time for which a stream without a reader is kept; 0: never"),
    Option("--store FILE", str, None,
           "where responses and batches are stored: a file, memory, or off [a file in XDG_STATE_HOME]"),
    Option("--store-max-age DAYS", to.positive_int, int(STORAGE.max_age / DAY),
           "days without use after which a response is deleted"),
    Option("--store-max-size MIB", to.positive_int, STORAGE.max_bytes >> 20,
           "size limit of responses; the least recently used are deleted"),
    Switch("--ui --webui", SERVER.ui, "serve the live page"),
    Switch("--metrics", SERVER.metrics, "serve GET /metrics"),
    Switch("--slots", SERVER.slots, "serve GET /slots"),
    Option("--slot-save-path DIR", Path, SERVER.slot_save_path,
           "folder in which clients save slots by POST /slots/ID [they cannot]"),
    Switch("--expose-prompts", SERVER.expose_prompts, "show texts in GET /v1/events"),
    Switch("--otel", SERVER.otel, "send traces by OTLP; needs the extra [otel]"),
    Option("--log-level", ("debug", "info", "warning", "error"), "info", "lowest level of records to log"),
    Option("--log-format", FORMATS, "text", "lines of text, or one JSON object per line"),
)
PICTURES = (
    Switch("--media-url", MEDIA.urls, "fetch pictures from public addresses"),
    Option("--media-path DIR", Path, None, "folder whose files requests may name by file:// [none]"),
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
    Option("--max-body-values N", to.positive_int, LIMITS.max_body_values,
           "limit of values in a body, but for prompts of tokens"),
    Option("--max-bodies-mib MIB", to.positive_int, LIMITS.max_bodies >> 20,
           "size limit of all bodies over 64 KiB in work; others get 503"),
    Option("--header-timeout S", to.seconds, LIMITS.header_timeout, "time limit for a request's head"),
    Option("--body-timeout S", to.seconds, LIMITS.body_timeout, "time limit for a request's body"),
    Option("--keep-alive S", to.seconds, LIMITS.keep_alive, "time after which an idle connection is closed"),
    Option("--client-timeout S", to.client_seconds, LIMITS.client_timeout,
           "silence after which a client's machine is gone; 0: never"),
    Option("--reader-stall S", to.seconds_or_off, LIMITS.reader_stall,
           "time after which an unread answer is cancelled; 0: never"),
    Option("--max-event-clients N", to.positive_int, LIMITS.max_event_clients,
           "limit of readers of GET /v1/events; others get 503"),
    Option("--max-connections N", to.natural, LIMITS.max_connections,
           "limit of connections; a new one closes the longest idle one; 0: as files allow"),
    Option("--max-connections-per-address N", to.natural, LIMITS.max_connections_per_address,
           "limit of an address's connections; 0: three quarters of all"),
)
ACCESS = (
    Option("--api-key KEY", str, None,
           "key that clients must send; of several each is an owner: docs/cancelling.md"),
    Option("--api-key-file FILE", Path, None, "file of keys, one per line: KEY or NAME:KEY"),
    Option("--admin-api-key KEY", str, None,
           "key that may see and cancel all owners' requests"),
    Several("--cors-origins ORIGINS", to.checked_by(web_origin),
            "other pages that may use the server: origins, SCHEME://*, null, localhost, or *"),
    Several("--allowed-hosts NAMES", to.checked_by(host_name),
            "further names of this server: NAME, *.NAME or *; others get 421"),
    Option("--ssl-key-file FILE", Path, None, "PEM file of a private key, to serve HTTPS"),
    Option("--ssl-cert-file FILE", Path, None, "PEM file of that key's certificate"),
)
WORKERS = (
    Several("--workers URLS", str,
            "workers to serve: http(s)://HOST:PORT, dns://NAME:PORT, or any"),
    Option("--worker URL", str, None, "front at which this worker registers itself: http(s)://HOST:PORT"),
    Option("--worker-url URL", str, None, "address of this worker for that front [the one from which it registers]"),
    Option("--replica NAME", to.replica_name, None, "server's name in X-Served-By [a worker's HOST:PORT]"),
    Option("--worker-key FILE", Path, None, "file of the key of a front and its workers"),
    Option("--worker-ca FILE", Path, None, "PEM file of the certificates that both trust"),
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
