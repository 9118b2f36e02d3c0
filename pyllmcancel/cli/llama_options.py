"""llama-server's options that are not ours: each is what happens anyway, does nothing and says why, or is refused.

`tests/unit/test_llama_options.py` holds this against llama-server's source; `tools/describe_options.py` makes a
page of it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

logger = logging.getLogger("pyllmcancel.serve")

Kind = Literal["anyway", "ignored", "refused"]
NO_DRAFT = "nothing is drafted here: answers are the same, one token at a time"


@dataclass(frozen=True, slots=True)
class Foreign:
    """Options that share a reason: words with blanks between them."""

    why: str
    flags: str = ""  # without a value
    valued: str = ""  # with one
    pairs: str = ""  # with two

    def arities(self) -> Iterable[tuple[str, int]]:
        for arity, names in enumerate((self.flags, self.valued, self.pairs)):
            yield from ((name, arity) for name in names.split())


# What is done in any case: nothing is said.
ANYWAY = (
    Foreign("requests compute together in one batch", "-cb --cont-batching"),
    Foreign("an answer ends where the context does", "--no-context-shift"),
    Foreign("prefixes are reused", "--cache-prompt --cache-idle-slots"),
    Foreign("there are no images", "--no-mmproj --no-mmproj-auto"),
    Foreign("the server runs no tools", "-no-ag --no-agent --no-ui-mcp-proxy --no-webui-mcp-proxy"),
    Foreign("as llama.cpp does by default", "--repack --no-perf"),
    Foreign("the log has times and names", "--log-prefix --log-timestamps"),
    Foreign("nothing is drafted", "--no-spec-draft-backend-sampling"),
    Foreign("answers of chats are parsed", "--no-skip-chat-parsing"),
)

# What changes no answer: a line in the log says why nothing happens.
IGNORED = (
    Foreign(
        "cores and priority are the process's: start it with taskset, nice or numactl",
        "",
        "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio -Cb --cpu-mask-batch -Crb --cpu-range-batch"
        " --cpu-strict-batch --prio-batch --numa",
    ),
    Foreign("compute threads spin from step to step, and rest when no step follows", "", "--poll --poll-batch"),
    Foreign("one event loop serves all connections", "", "--threads-http"),
    Foreign("--max-running 1 runs one request of a key at a time", "-nocb --no-cont-batching"),
    Foreign("prefixes are reused from their first token on; pieces from the middle are not moved", "", "--cache-reuse"),
    Foreign("--cache-ram 0 keeps no idle prefixes outside the cells", "--no-cache-idle-slots"),
    Foreign("requests say it: cache_prompt", "--no-cache-prompt"),
    Foreign("the context is not shifted, so nothing is to be kept", "", "--keep"),
    Foreign("the slot with the longest reusable prefix is taken, however short", "", "-sps --slot-prompt-similarity"),
    Foreign("sliding-window models go on from checkpoints: --ctx-checkpoints", "--swa-full"),
    Foreign("--checkpoint-interval says how far apart checkpoints are", "", "-cms --checkpoint-min-step"),
    Foreign("slots are not saved to files: /slots/ID?action=save is refused", "", "--slot-save-path"),
    Foreign("GET /props answers in any case; nothing can be changed by a POST", "--props"),
    Foreign(
        "the times are --header-timeout, --body-timeout, --reader-stall and --request-timeout", "", "-to --timeout"
    ),
    Foreign("there is no warm-up run", "--warmup --no-warmup"),
    Foreign("requests' bodies and command lines are taken as they are", "-e --escape --no-escape"),
    Foreign("/metrics and /v1/steps tell times", "--perf"),
    Foreign("llama.cpp's CPU back end chooses the layout of weights", "-nr --no-repack --no-host"),
    Foreign("--ctx-size is taken as it is: fewer layers are offloaded instead", "", "-fitc --fit-ctx"),
    Foreign("the whole file is mapped, or read: --mmap", "", "-lzm --lazy-mode"),
    Foreign("the file's structure is checked in any case, its weights are not", "--check-tensors"),
    Foreign("llama.cpp itself does nothing with it", "", "-dt --defrag-thold"),
    Foreign("samplers run on the CPU", "-bs --backend-sampling --spec-draft-backend-sampling"),
    Foreign("the model stays in memory", "", "--sleep-idle-seconds"),
    Foreign("the page at / is our own", "", "--ui-config --webui-config --ui-config-file --webui-config-file"),
    Foreign("what the API needs is allowed to the pages of --cors-origins", "--cors-credentials --no-cors-credentials",
            "--cors-methods --cors-headers"),
    Foreign("the log goes to standard error, with times and names: redirect it", "--no-log-prefix --no-log-timestamps",
            "--log-file --log-colors --log-prompts-dir"),
    Foreign("there are no images, sounds or videos here", "--mmproj-auto --mmproj-offload --no-mmproj-offload",
            "-mmdev --mmproj-device --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps"
            " --video-timestamp-interval --video-ffmpeg-dir --media-path"),
    Foreign("one model is served, which is loaded at the start", "--models-autoload --no-models-autoload",
            "--models-max"),
    Foreign(
        NO_DRAFT,
        "--spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-default",
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic"
        " --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft"
        " --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft"
        " --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft"
        " --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch"
        " --cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch"
        " --poll-batch-draft"
        " --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft"
        " --spec-draft-override-tensor -otd --override-tensor-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe -ncmoed"
        " --n-cpu-moe-draft --spec-draft-n-max --spec-draft-n-min --spec-draft-p-split --draft-p-split"
        " --spec-draft-p-min --draft-p-min --spec-draft-device -devd --device-draft --spec-draft-ngl -ngld"
        " --gpu-layers-draft --n-gpu-layers-draft --spec-ngram-mod-n-min --spec-ngram-mod-n-max"
        " --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits"
        " --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n"
        " --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits --draft --draft-n --draft-max --draft-min"
        " --draft-n-min --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
    ),
)  # fmt: skip

# What would change answers, or what the server is: nobody is served something else than was asked for.
REFUSED = (
    Foreign("images are not supported", "--vision-gemma-4b-default --vision-gemma-12b-default",
            "-mm --mmproj -mmu --mmproj-url"),
    Foreign("there is no drafting: leave it out, and answers are the same", "", "-md --model-draft --spec-draft-model"
            " -hfd -hfrd --hf-repo-draft --spec-draft-hf --spec-type --spec-synth-len --spec-synth-rates"),
    Foreign("computing on other machines is not supported", "", "--rpc"),
    Foreign("every request says its own: grammar, or response_format with a JSON schema", "",
            "--grammar --grammar-file -j --json-schema -jf --json-schema-file"),
    Foreign("every request says its own: stop, logit_bias, ignore_eos, dry_sequence_breakers", "--ignore-eos",
            "-r --reverse-prompt -l --logit-bias --dry-sequence-breaker"),
    Foreign("this sampler is not supported", "", "--adaptive-target --adaptive-decay"),
    Foreign("the model's own positions are used", "", "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale"
            " --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast"),
    Foreign("the model's file is taken as it is", "", "--override-kv --control-vector --control-vector-scaled",
            "--control-vector-layer-range"),
    Foreign("an adapter applies to all requests, with the scale of --lora-scaled", "--lora-init-without-apply"),
    Foreign("an answer ends where the context does", "--context-shift"),
    Foreign("divide the context by --ctx-size and --parallel", "", "--kv-unified-per-slot"),
    Foreign("chats and completions say it themselves, by skip_special_tokens false", "-sp --special"),
    Foreign("infills are in the order prefix, suffix, middle", "--spm-infill"),
    Foreign("embeddings have length 1", "", "--embd-normalize"),
    Foreign("a chat says so itself, by reasoning_format none", "--skip-chat-parsing"),
    Foreign("reranking is not supported", "--rerank --reranking"),
    Foreign("name a file by --model, or a model of the hub by --hf-repo", "", "-mu --model-url -dr --docker-repo"),
    Foreign("one server serves one model: start several", "", "--models-dir --models-preset"),
    Foreign("the server runs no tools", "-ag --agent --ui-mcp-proxy --webui-mcp-proxy", "--tools --tools-runtime"
            " --mcp-servers-config --mcp-servers-json"),
    Foreign("have a proxy serve files, and strip a prefix of the path", "", "--path --api-prefix"),
    Foreign("one process listens on a port", "--reuse-port"),
    Foreign("see `pyllmcancel models`", "-cl --cache-list"),
    Foreign("there is nothing of the kind", "--completion-bash"),
)  # fmt: skip

KINDS: dict[Kind, Sequence[Foreign]] = {"anyway": ANYWAY, "ignored": IGNORED, "refused": REFUSED}


def add_foreign(parser: argparse.ArgumentParser) -> None:
    """Take all of them; `warn` tells afterwards of those that were given and do nothing."""
    parser.set_defaults(passed_over=())
    group = parser.add_argument_group()  # a parser would look up the terminal's size for each option
    for kind, rows in KINDS.items():
        for row in rows:
            action: Any = partial(Take, kind=kind, why=row.why)
            for arity, names in enumerate((row.flags, row.valued, row.pairs)):
                if names:
                    hidden: Any = {"dest": argparse.SUPPRESS, "help": argparse.SUPPRESS}
                    group.add_argument(*names.split(), action=action, nargs=arity, **hidden)


class Take(argparse.Action):
    """Takes an option that is not ours, and its values."""

    def __init__(self, *args: Any, kind: Kind, why: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kind = kind
        self.why = why

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        if self.kind == "refused":
            parser.error(f"{option}: {self.why}")
        if self.kind == "ignored":
            namespace.passed_over = (*namespace.passed_over, f"{option} does nothing: {self.why}")


def warn(arguments: argparse.Namespace) -> None:
    """A line for each option that was given and does nothing."""
    for line in dict.fromkeys(arguments.passed_over):
        logger.warning("%s", line)
