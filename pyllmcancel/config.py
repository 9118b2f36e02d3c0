"""The configuration of an engine, as values only: sizes, limits and targets."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from pyllmcancel.placement import Placement
from pyllmcancel.system import usable_cores


def default_threads() -> int:
    """Return the number of cores that this process may use: those of its affinity, within its control group's quota.

    A quota of one and a half cores gives one thread: two threads that meet at barriers would be halted in each period.
    """
    return max(1, int(min(usable_cores(), core_quota())))


def core_quota(groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the CPU time per second, in cores, that the control group allows its processes; infinite without a limit.

    In a container `groups` shows the container's own group as its root.
    """
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # version 2, version 1
        try:
            quota, period, *_ = " ".join((groups / name).read_text() for name in names).split()
            if quota not in ("max", "-1"):
                return float(quota) / float(period)
        except (OSError, ValueError):
            continue
    return inf


# Names of llama.cpp's `--cache-type-k/-v`, and ggml's numbers for them.
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2, "iq4_nl": 20}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything an engine needs to know besides the model itself.

    Attributes
    ----------
    model
        A GGUF file; None serves the small model in the package.
    alias
        The model's names for clients, separated by commas; by default the name of its file.
    parallel
        The limit of sequences that compute at once.
    ctx_size
        The context in tokens of one request; with `kv_unified` False, of all `parallel` sequences together. 0: the
        model's own context, at most 16,384.
    kv_unified
        True: any sequence may use any of `ctx_size` cells. False: each has its part of them, rounded up to 256. None:
        each of `parallel` sequences has `ctx_size` cells of its own, so that an answer's last bits do not depend on
        other requests: for attention models on a CPU, if all cells fit into half of the machine's memory. Otherwise,
        and for recurrent and hybrid models, it is the same as True.
    batch_size, ubatch_size
        llama.cpp's logical and physical batch. The smaller one is the limit of a step's tokens.
    threads, threads_batch
        The number of compute threads, and that for prompts. 0: one for each core, or as many for prompts as for the
        rest. With both 0, steps use fewer threads while other programs keep cores busy. No result depends on them.
    cached_sequences
        The number of idle prefixes kept in unified cells beside the running sequences. Recurrent and hybrid models
        keep one at most.
    cache_ram
        The limit in MiB of idle prefixes that are swapped out of a CPU's cells into plain memory; 0: none, None: no
        limit. docs/memory.md says which prefixes are swapped, and when.
    cache_disk, cache_disk_mib
        A folder of files in which idle prefixes survive a restart, and the limit of its files in MiB. A file is used
        for the same owner, model, build and kind of cells only. None: there are no such files.
    named_slots
        If True, a request that names a slot goes on from whatever the slot's last request has left, and prefixes of
        slots can be copied, replaced and erased.
    checkpoint_interval, ctx_checkpoints, checkpoint_mib
        For recurrent, hybrid and sliding-window models, whose memory cannot be rolled back: the number of tokens
        between two copies of a prompt's state (0: no copies), and the limits of a sequence's copies, and of all in MiB.
    max_queue, max_queue_tokens
        The limits of one owner's waiting requests, and of the tokens of their prompts; None: no limit.
    refuse_late
        If True, refuse a request that is not expected to end before its deadline, even if all goes well.
    max_running
        The limit of one owner's running requests; the others wait. None: no limit.
    request_timeout, queue_timeout, idle_timeout
        The deadlines of a request without its own, in seconds: from arrival to the end, from arrival to the first slot,
        and between two tokens; None: no deadline.
    itl_target
        The limit in seconds of the time that a prompt may put between two tokens of decoding requests. Chunks are never
        made so small that they have less than half the speed of large ones.
    max_step_seconds
        The limit of a prefill step in seconds when no other request decodes, for which a new request waits.
    steps_ahead
        If True, a decode step begins before Python has read the previous step's tokens, as long as nothing has changed.
        None: True if most layers are computed on a GPU, which would wait for Python between two steps.
    cache_type_k, cache_type_v
        The types of keys and values in the cells: names in `CACHE_TYPES`.
    flash_attn
        ``auto``, ``on`` or ``off``.
    placement
        The placement of layers and other tensors on devices.
    mmap, mlock
        If True, map the file into memory instead of copying it; keep the model in memory, never swapped out.
    lora, lora_init_without_apply
        The LoRA adapters to load, each a GGUF file and its scale for requests that do not choose adapters; and whether
        these scales are 0 until they are set (`AdapterTable.set_scales`).
    mmproj, mmproj_offload
        The model's projector, a GGUF file, with which prompts may have pictures or sounds, and whether a GPU may encode
        them. None: prompts have none.
    image_min_tokens, image_max_tokens
        The limits of one picture's tokens, for projectors that take pictures of any size. None: as the projector says.
    media_cache_mib
        The limit in MiB of encoded pictures that are kept for later prompts, of all owners together.
    pooling
        The pooling of a text's token vectors: ``mean``, ``cls`` or ``last`` serves embeddings of any model, ``rank``
        the scores of a model that has a classification head, ``auto`` follows the model's file. ``none`` serves the
        embeddings of tokens if `embeddings` is True; otherwise it makes an embedding model generate.
    embeddings
        If True, refuse to load a model that would generate.
    matryoshka
        True if the model was trained so that its embeddings can be cut: requests may ask for fewer `dimensions`.
    draft_sources
        Where drafts come from: ``past``, the owner's recent answers; ``prediction``, what a request expects;
        ``ngram``, the prompt and the answer itself; ``model``, the draft model; ``heads``, the model's own heads.
        Drafts change the speed of answers only. Recurrent and hybrid models have none.
    draft_max
        The limit of drafted tokens in one step.
    draft_model
        A GGUF file of a smaller model with the same vocabulary, for ``model`` in `draft_sources`. None: there is none.
    draft_min, draft_p_min
        The draft model's shorter drafts are not used, and it stops before a token of a lower probability.
    draft_threads, draft_threads_batch, draft_cache_type_k, draft_cache_type_v, draft_placement
        As those of the model, for the draft model. With 0 threads it has as many as the model.
    past_answers_mib
        The limit of remembered answers in MiB, of all owners together.
    token_healing
        If True, completions heal their prompts, unless their requests say otherwise: the last word of a prompt is taken
        back, and the answer begins with it.
    """

    model: Path | None = None
    alias: str | None = None
    parallel: int = 4
    ctx_size: int = 0
    kv_unified: bool | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    threads: int = 0
    threads_batch: int = 0
    cached_sequences: int = 4
    cache_ram: int | None = 1024
    cache_disk: Path | None = None
    cache_disk_mib: int = 8192
    named_slots: bool = False
    checkpoint_interval: int = 64
    ctx_checkpoints: int = 4
    checkpoint_mib: int = 1024
    max_queue: int = 256
    max_queue_tokens: int | None = None
    refuse_late: bool = False
    max_running: int | None = None
    request_timeout: float | None = None
    queue_timeout: float | None = None
    idle_timeout: float | None = None
    itl_target: float = 0.5
    max_step_seconds: float = 0.5
    steps_ahead: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    flash_attn: str = "auto"
    placement: Placement = field(default_factory=Placement)
    mmap: bool = True
    mlock: bool = False
    lora: tuple[tuple[Path, float], ...] = ()
    lora_init_without_apply: bool = False
    mmproj: Path | None = None
    mmproj_offload: bool = True
    image_min_tokens: int | None = None
    image_max_tokens: int | None = None
    media_cache_mib: int = 256
    pooling: str = "auto"
    embeddings: bool = False
    matryoshka: bool = False
    draft_sources: tuple[str, ...] = ("past", "prediction", "ngram", "model")
    draft_max: int = 32
    draft_model: Path | None = None
    draft_min: int = 0
    draft_p_min: float = 0.0
    draft_threads: int = 0
    draft_threads_batch: int = 0
    draft_cache_type_k: str = "f16"
    draft_cache_type_v: str = "f16"
    draft_placement: Placement = field(default_factory=Placement)
    past_answers_mib: int = 64
    token_healing: bool = False

    def of_draft_model(self) -> EngineConfig:
        """Return the configuration that the draft model is loaded and measured with."""
        return replace(
            self,
            model=self.draft_model,
            threads=self.draft_threads or self.threads,
            threads_batch=self.draft_threads_batch or self.draft_threads or self.threads_batch,
            cache_type_k=self.draft_cache_type_k,
            cache_type_v=self.draft_cache_type_v,
            placement=self.draft_placement,
            lora=(),
            mmproj=None,
            pooling="auto",
            embeddings=False,
            draft_model=None,
        )

    def aliases(self) -> tuple[str, ...]:
        """The model's names, sorted; as in llama-server, the first one is used in answers."""
        names = (name.strip() for name in (self.alias or "").split(","))
        return tuple(sorted({name for name in names if name}))

    def step_tokens(self) -> int:
        """The limit of one step's tokens."""
        return min(self.batch_size, self.ubatch_size)

    def context_size(self, n_ctx_train: int) -> int:
        """The number of cells to ask for, in tokens."""
        return self.ctx_size if self.ctx_size > 0 else min(n_ctx_train * self.parallel, 16_384)

    def swap_bytes(self) -> int:
        """The limit in bytes of idle prefixes outside the cells; llama-server's -1 also means no limit."""
        return sys.maxsize if self.cache_ram is None or self.cache_ram < 0 else self.cache_ram << 20

    def memory_options(self) -> dict[str, Any]:
        """Return the compiled core's options that decide a context's memory, for generating and for embedding."""
        return {
            "kv_offload": self.placement.kv_offload,
            "op_offload": self.placement.op_offload,
            "flash_attention": FLASH_ATTENTION[self.flash_attn],
            "type_k": CACHE_TYPES[self.cache_type_k],
            "type_v": CACHE_TYPES[self.cache_type_v],
        }

    def thread_options(self) -> dict[str, Any]:
        """Return the compiled core's options for the number of threads of a step, for generating and for embedding."""
        n_threads = self.threads if self.threads > 0 else default_threads()
        return {
            "n_threads": n_threads,
            "n_threads_batch": self.threads_batch if self.threads_batch > 0 else n_threads,
            "adapt_threads": self.threads <= 0 and self.threads_batch <= 0,  # not if their number was chosen
        }
