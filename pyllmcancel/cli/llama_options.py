"""llama-server's options that are not in the table of ours. Each one is another name for what ours do, asks for what
happens anyway, is ignored with a line in the log, or is refused.

`tests/unit/test_llama_options.py` compares these tables with llama-server's source; `tools/describe_options.py` makes a
page of them.
"""

from __future__ import annotations

import argparse
import logging
from argparse import ArgumentTypeError
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pyllmcancel.cli.converters import whole
from pyllmcancel.cli.options import silent
from pyllmcancel.sampling import SAMPLER_LETTERS

logger = logging.getLogger("pyllmcancel.serve")

Kind = Literal["anyway", "ignored", "refused"]


@dataclass(frozen=True, slots=True)
class Foreign:
    """Options that share a reason: their names, separated by blanks, with a ``=`` for each value that one takes."""

    why: str
    names: str

    def arities(self) -> Iterable[tuple[str, int]]:
        return ((name.rstrip("="), name.count("=")) for name in self.names.split())


# These options ask for what happens in any case: nothing is logged.
ANYWAY = (
    Foreign("requests compute together in one batch", "-cb --cont-batching"),
    Foreign("an answer ends where the context does", "--no-context-shift"),
    Foreign("prefixes are reused", "--cache-prompt --cache-idle-slots"),
    Foreign("the server runs no tools", "-no-ag --no-agent --no-ui-mcp-proxy --no-webui-mcp-proxy"),
    Foreign("llama.cpp does so by default", "--repack --no-perf"),
    Foreign("the log has times and names", "--log-prefix --log-timestamps"),
    Foreign("samplers run on the CPU", "--no-spec-draft-backend-sampling"),
    Foreign("answers are drafted by default: --spec-type", "--spec-default"),
    Foreign("answers of chats are parsed", "--no-skip-chat-parsing"),
)

# These options change no answer: a line in the log says why they are ignored.
IGNORED = (
    Foreign("cores and priority belong to the process: start it with taskset, nice or numactl",
            "-C= --cpu-mask= -Cr= --cpu-range= --cpu-strict= --prio= -Cb= --cpu-mask-batch= -Crb= --cpu-range-batch="
            " --cpu-strict-batch= --prio-batch= --numa="),
    Foreign("compute threads spin from step to step, and rest when no step follows", "--poll= --poll-batch="),
    Foreign("one event loop serves all connections", "--threads-http="),
    Foreign("--max-running 1 runs one request of a key at a time", "-nocb --no-cont-batching"),
    Foreign("prefixes are reused from their first token on; pieces from the middle are not moved", "--cache-reuse="),
    Foreign("--cache-ram 0 keeps no idle prefixes outside the cells", "--no-cache-idle-slots"),
    Foreign("each request decides this itself, by cache_prompt", "--no-cache-prompt"),
    Foreign("the context is not shifted, so there is nothing to keep", "--keep="),
    Foreign("a request gets the slot with the longest reusable prefix, however short it is",
            "-sps= --slot-prompt-similarity="),
    Foreign("sliding-window models go on from checkpoints: --ctx-checkpoints", "--swa-full"),
    Foreign("--checkpoint-interval says how far apart checkpoints are", "-cms= --checkpoint-min-step="),
    Foreign("GET /props answers in any case; nothing can be changed by a POST", "--props"),
    Foreign("the time-outs are --header-timeout, --body-timeout, --reader-stall and --request-timeout",
            "-to= --timeout="),
    Foreign("there is no warm-up run", "--warmup --no-warmup"),
    Foreign("requests' bodies and command lines are taken as they are", "-e --escape --no-escape"),
    Foreign("/metrics and /v1/steps report times", "--perf"),
    Foreign("llama.cpp's CPU back end chooses the layout of weights", "-nr --no-repack --no-host"),
    Foreign("--ctx-size is never reduced: fewer layers are offloaded instead", "-fitc= --fit-ctx="),
    Foreign("the whole file is mapped, or read: --mmap", "-lzm= --lazy-mode="),
    Foreign("the file's structure is checked in any case, its weights are not", "--check-tensors"),
    Foreign("llama.cpp itself ignores it", "-dt= --defrag-thold="),
    Foreign("samplers run on the CPU", "-bs --backend-sampling --spec-draft-backend-sampling"),
    Foreign("the page at / is this project's own",
            "--ui-config= --webui-config= --ui-config-file= --webui-config-file="),
    Foreign("the pages of --cors-origins may use all that the API needs",
            "--cors-credentials --no-cors-credentials --cors-methods= --cors-headers="),
    Foreign("the log goes to standard error, with times and names: redirect it",
            "--no-log-prefix --no-log-timestamps --log-file= --log-colors= --log-prompts-dir="),
    Foreign("the first GPU encodes pictures, one at a time; --no-mmproj-offload: the CPU",
            "-mmdev= --mmproj-device= --mtmd-batch-max-tokens="),
    Foreign("videos are not supported", "--video-fps= --video-timestamp-interval= --video-ffmpeg-dir="),
    Foreign("drafts come from the prompt, the answer and the key's recent answers, not from files",
            "-lcs= --lookup-cache-static= -lcd= --lookup-cache-dynamic="),
    Foreign("a draft is as long as pays, by what was accepted and by the measured cost of a step",
            "--spec-ngram-mod-n-min= --spec-ngram-mod-n-max="),
    Foreign("n-grams of several lengths are looked up, and the longest match counts; --draft-max limits a draft",
            "--spec-ngram-mod-n-match= --spec-ngram-simple-size-n= --spec-ngram-simple-size-m="
            " --spec-ngram-simple-min-hits= --spec-ngram-map-k-size-n= --spec-ngram-map-k-size-m="
            " --spec-ngram-map-k-min-hits= --spec-ngram-map-k4v-size-n= --spec-ngram-map-k4v-size-m="
            " --spec-ngram-map-k4v-min-hits= --spec-ngram-size-n= --spec-ngram-size-m= --spec-ngram-min-hits="),
    Foreign("cores and priority belong to the process, as those of the model",
            "--spec-draft-cpu-mask= -Cd= --cpu-mask-draft= --spec-draft-cpu-range= -Crd= --cpu-range-draft="
            " --spec-draft-cpu-strict= --cpu-strict-draft= --spec-draft-prio= --prio-draft= --spec-draft-poll="
            " --poll-draft= --spec-draft-cpu-mask-batch= -Cbd= --cpu-mask-batch-draft= --spec-draft-cpu-strict-batch="
            " --cpu-strict-batch-draft= --spec-draft-prio-batch= --prio-batch-draft= --spec-draft-poll-batch="
            " --poll-batch-draft="),
    Foreign("--gpu-layers-draft and --device-draft place the draft model, in whole layers",
            "--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-override-tensor= -otd= --override-tensor-draft="
            " --spec-draft-n-cpu-moe= --spec-draft-ncmoe= -ncmoed= --n-cpu-moe-draft="),
    Foreign("llama.cpp itself does not use it: a draft is one sequence of tokens",
            "--spec-draft-p-split= --draft-p-split="),
)  # fmt: skip

# These options would change answers, or the kind of server. They are refused, so that nobody is served something else
# than was asked for.
REFUSED = (
    Foreign("download the files, and name them with --model and --mmproj",
            "--vision-gemma-4b-default --vision-gemma-12b-default -mmu= --mmproj-url="),
    Foreign("a draft is accepted as far as it says what the model chooses", "--spec-synth-len= --spec-synth-rates="),
    Foreign("computing on other machines is not supported", "--rpc="),
    Foreign("each request has its own: grammar, or response_format with a JSON schema",
            "--grammar= --grammar-file= -j= --json-schema= -jf= --json-schema-file="),
    Foreign("each request has its own: stop, logit_bias, ignore_eos, dry_sequence_breakers",
            "--ignore-eos -r= --reverse-prompt= -l= --logit-bias= --dry-sequence-breaker="),
    Foreign("this sampler is not supported", "--adaptive-target= --adaptive-decay="),
    Foreign("the model's own positions are used",
            "--rope-scaling= --rope-scale= --rope-freq-base= --rope-freq-scale= --yarn-orig-ctx= --yarn-ext-factor="
            " --yarn-attn-factor= --yarn-beta-slow= --yarn-beta-fast="),
    Foreign("the model's file is used unchanged",
            "--override-kv= --control-vector= --control-vector-scaled= --control-vector-layer-range=="),
    Foreign("an answer ends where the context does", "--context-shift"),
    Foreign("divide the context by --ctx-size and --parallel", "--kv-unified-per-slot="),
    Foreign("each request decides this itself, by skip_special_tokens false", "-sp --special"),
    Foreign("infills are in the order prefix, suffix, middle", "--spm-infill"),
    Foreign("embeddings have length 1", "--embd-normalize="),
    Foreign("each chat decides this itself, by reasoning_format none", "--skip-chat-parsing"),
    Foreign("name a file by --model, or a model of the hub by --hf-repo", "-mu= --model-url= -dr= --docker-repo="),
    Foreign("the server runs no tools",
            "-ag --agent --ui-mcp-proxy --webui-mcp-proxy --tools= --tools-runtime= --mcp-servers-config="
            " --mcp-servers-json="),
    Foreign("use a proxy to serve files, or to strip a prefix of the path", "--path= --api-prefix="),
    Foreign("one process listens on a port", "--reuse-port"),
    Foreign("see `pyllmcancel models`", "-cl --cache-list"),
    Foreign("this is not supported", "--completion-bash"),
)  # fmt: skip

KINDS: dict[Kind, Sequence[Foreign]] = {"anyway": ANYWAY, "ignored": IGNORED, "refused": REFUSED}

CODER = {"port": 8012, "ubatch_size": 1024, "batch_size": 1024, "ctx_size": 0}
GPT_OSS = {"port": 8013, "ubatch_size": 2048, "batch_size": 32_768, "parallel": 2, "ctx_size": 262_144,
           "temp": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.01}  # fmt: skip
EMBEDDER = {"port": 8011, "ubatch_size": 2048, "batch_size": 2048, "parallel": 32, "ctx_size": 65_536,
            "embeddings": True, "hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
            "hf_file": "embeddinggemma-300M-qat-Q4_0.gguf"}  # fmt: skip


def _coder(model: str) -> dict[str, Any]:
    return CODER | {"hf_repo": f"ggml-org/{model}-GGUF", "hf_file": f"{model.lower()}.gguf"}


def _drafted(model: str) -> dict[str, Any]:
    small = "Qwen2.5-Coder-0.5B-Q8_0"
    draft = {"hf_repo_draft": f"ggml-org/{small}-GGUF", "model_draft": Path(f"{small.lower()}.gguf")}
    return _coder(model) | draft


# A model of the hub, and the settings that llama-server uses with it.
SHORTCUTS: dict[str, dict[str, Any]] = {
    "--fim-qwen-1.5b-default": _coder("Qwen2.5-Coder-1.5B-Q8_0"),
    "--fim-qwen-3b-default": _coder("Qwen2.5-Coder-3B-Q8_0"),
    "--fim-qwen-7b-default": _coder("Qwen2.5-Coder-7B-Q8_0"),
    "--fim-qwen-7b-spec": _drafted("Qwen2.5-Coder-7B-Q8_0"),
    "--fim-qwen-14b-spec": _drafted("Qwen2.5-Coder-14B-Q8_0"),
    "--fim-qwen-30b-default": _coder("Qwen3-Coder-30B-A3B-Instruct-Q8_0"),
    "--gpt-oss-20b-default": GPT_OSS | {"hf_repo": "ggml-org/gpt-oss-20b-GGUF", "hf_file": "gpt-oss-20b-mxfp4.gguf"},
    "--gpt-oss-120b-default": GPT_OSS | {"hf_repo": "ggml-org/gpt-oss-120b-GGUF", "hf_file": None},
    "--embd-gemma-default": EMBEDDER,
}
LOAD_MODES = {
    "auto": {},
    "none": {"mmap": False, "mlock": False},
    "mmap": {"mmap": True, "mlock": False},
    "mlock": {"mmap": False, "mlock": True},
    "mmap+mlock": {"mmap": True, "mlock": True},
}
VERBOSITIES = ("error", "error", "warning", "info", "debug")  # by llama-server's numbers; larger numbers mean the last
# Spellings that set other options, which the help does not show.
SPELLINGS: dict[str, dict[str, Any]] = {
    "-no-kvu": {"kv_unified": False},
    "-nkvo": {"kv_offload": False},
    "--no-mmproj": {"mmproj_auto": False},
    "-v --verbose --log-verbose": {"log_level": "debug", "verbose": True},
    "--log-disable": {"log_level": "error"},
    "--log-jsonl": {"log_format": "json"},
    "--no-log-jsonl": {"log_format": "text"},
}


def add_llama_options(parser: argparse.ArgumentParser) -> None:
    """Accept all of them; `warn` logs afterwards which of those given are ignored."""
    text = "Models of the hub with llama-server's settings, which later options override."
    shortcuts = parser.add_argument_group("shortcuts", text)
    for name, settings in SHORTCUTS.items():
        shortcuts.add_argument(name, help=settings["hf_repo"], **silent(partial(_set, settings)))
    hidden: Any = {"help": argparse.SUPPRESS}
    group = parser.add_argument_group()  # made here: a parser would look up the terminal's size for each option
    for names, settings in SPELLINGS.items():
        group.add_argument(*names.split(), **silent(partial(_set, settings)), **hidden)
    modes: Any = {"metavar": "MODE", "choices": tuple(LOAD_MODES), "nargs": None}
    group.add_argument("-lm", "--load-mode", **silent(_set_load_mode) | hidden | modes)
    hidden["default"] = argparse.SUPPRESS
    group.add_argument("-lv", "--verbosity", "--log-verbosity", dest="log_level", type=level, **hidden)
    group.add_argument("--sampler-seq", "--sampling-seq", dest="samplers", type=samplers, **hidden)
    parser.set_defaults(verbose=False, ignored_options=())
    for kind, rows in KINDS.items():
        for row in rows:
            for name, arity in row.arities():
                does = silent(partial(_take, kind, row.why), arity)
                group.add_argument(name, help=argparse.SUPPRESS, **does)


def _set(settings: dict[str, Any], _parser: Any, namespace: argparse.Namespace, *_: Any) -> None:
    vars(namespace).update(settings)


def _set_load_mode(_parser: Any, namespace: argparse.Namespace, mode: str, _option: Any) -> None:
    vars(namespace).update(LOAD_MODES[mode])


def _take(kind: Kind, why: str, parser: argparse.ArgumentParser, namespace: Any, _: Any, option: str) -> None:
    if kind == "refused":
        parser.error(f"{option}: {why}")
    if kind == "ignored":
        namespace.ignored_options = (*namespace.ignored_options, f"{option} is ignored: {why}")


def warn(arguments: argparse.Namespace) -> None:
    """Log a line for each option that was given and is ignored."""
    for line in dict.fromkeys(arguments.ignored_options):
        logger.warning("%s", line)


def level(text: str) -> str:
    """Return the word of ``--log-level`` for llama-server's number."""
    return VERBOSITIES[min(max(whole(text), 0), len(VERBOSITIES) - 1)]


def samplers(text: str) -> str:
    """Return the samplers' names for llama-server's letters."""
    unknown = [letter for letter in text if letter not in SAMPLER_LETTERS]
    if unknown:
        raise ArgumentTypeError(f"there is no sampler {unknown[0]!r}; the samplers are {''.join(SAMPLER_LETTERS)}")
    return ";".join(SAMPLER_LETTERS[letter] for letter in text)
