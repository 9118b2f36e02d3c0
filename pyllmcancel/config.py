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
        None: each of `parallel` sequences has `ctx_size` cells of its own, so that the last bits of an answer do not
        depend on other requests. The cells take memory when they are first used. This applies to attention models on a
        CPU, if the cells of all sequences fit into half of the machine's memory; otherwise None is the same as True.
        True: any sequence may use any of `ctx_size` cells. False: each has its part of them, rounded up to 256, as the
        command line sets if ``--parallel`` is given. Recurrent and hybrid models are always unified.
    batch_size, ubatch_size
        llama.cpp's logical and physical batch. Here a step, the unit in which everything is computed, cancelled and
        redone, is always one physical batch: the smaller of the two is the limit of a step's tokens.
    threads, threads_batch
        The number of compute threads, and that for prompts. 0: one for each core, or as many for prompts as for the
        rest. With both 0, steps use fewer threads while other programs keep cores busy: a thread that shares its core
        stops all others at every node of the graph. No result depends on their number.
    cached_sequences
        The number of idle prefixes kept in cells beside the running sequences. This applies to attention models with
        unified cells. With divided cells, `cache_ram` is the limit. Recurrent and hybrid models keep one at most, for
        example of a preempted request.
    cache_ram
        On a CPU, the limit in MiB of idle prefixes that are swapped out of the cells into plain memory after some
        steps; 0: none, None: no limit. llama.cpp's attention walks over all cells in use, so that idle ones slow down
        every step. With divided cells a prefix is swapped out when its slot is taken. Copies are made ahead while
        nothing runs. A prefix of more than 128 MiB is not swapped out while other requests would wait for it; prefixes
        of recurrent, hybrid and sliding-window models, and prefixes computed without flash attention, never are.
    cache_disk, cache_disk_mib
        A folder of files in which idle prefixes survive a restart, and the limit of its files in MiB. Prefixes are
        written while nothing computes, and when they leave the cells for plain memory. Files are used for the same
        owner, model, build and kind of cells only. Prefixes that are computed without flash attention are not written.
        None: there are no such files.
    named_slots
        If True, a request that names a slot goes on from whatever the slot's last request has left, and prefixes of
        slots can be copied, replaced and erased.
    checkpoint_interval, ctx_checkpoints, checkpoint_mib
        Only for recurrent, hybrid and sliding-window models, whose memory cannot be rolled back: the number of tokens
        between two copies of a prompt's state (0: no copies), the limit of copies of a sequence, and the limit of all
        copies in MiB. A cancelled prompt loses the tokens computed since its last copy.
    max_queue
        The limit of one owner's waiting requests; further ones are refused.
    max_queue_tokens
        The limit of the tokens of one owner's waiting prompts; None: no limit. A prompt of more may wait alone.
    refuse_late
        If True, refuse a request that is not expected to end before its deadline, even if all goes well.
    max_running
        The limit of one owner's running requests; the others wait. None: no limit.
    request_timeout, queue_timeout, idle_timeout
        The deadlines of a request without its own, in seconds: from arrival to the end, from arrival to the first slot,
        and between two tokens; None: no deadline.
    cache_type_k, cache_type_v
        The types of keys and values in the cells: names in `CACHE_TYPES`.
    pooling
        The pooling of a text's token vectors: ``mean``, ``cls`` or ``last`` serves embeddings of any model, ``rank``
        the scores of a model that has a classification head, ``auto`` follows the model's file. ``none`` serves the
        embeddings of tokens if `embeddings` is True; otherwise it makes an embedding model generate.
    embeddings
        If True, refuse to load a model that would generate.
    matryoshka
        True if the model was trained so that its embeddings can be cut: requests may ask for fewer `dimensions`.
    flash_attn
        ``auto``, ``on`` or ``off``.
    placement
        The placement of layers and other tensors on devices.
    mmap
        If True, map the file into memory instead of copying it.
    mlock
        If True, keep the model in memory, so that it is never swapped out.
    lora
        The LoRA adapters to load, each a GGUF file and its scale for requests that do not choose adapters.
    lora_init_without_apply
        True: these scales are 0 until they are set (`AdapterTable.set_scales`).
    mmproj
        The model's projector, a GGUF file, with which prompts may have pictures or sounds. None: they have none.
    mmproj_offload
        If True, pictures are encoded on a GPU, if there is one.
    image_min_tokens, image_max_tokens
        The limits of one picture's tokens, for projectors that take pictures of any size. None: as the projector says.
    media_cache_mib
        The limit in MiB of encoded pictures that are kept for later prompts, of all owners together.
    itl_target
        The limit in seconds of the time that a prompt may put between two tokens of decoding requests: its chunk's step
        and theirs. Chunks are never made so small that they have less than half the speed of large ones.
    max_step_seconds
        The limit of a prefill step in seconds when no other request decodes, which bounds the time that a new request
        waits for the next step.
    draft_sources
        Where drafts come from. ``past`` is the owner's recent answers, cancelled ones included, ``prediction`` what a
        request says that it expects, and ``ngram`` the prompt and the answer itself. ``model`` is the draft model, and
        ``heads`` the model's own heads, with which it is loaded then. Empty: nothing is drafted. Drafts change the
        speed of answers only. Recurrent and hybrid models have none: a rejected draft cannot be undone.
    draft_max
        The limit of drafted tokens in one step.
    draft_model
        A GGUF file of a smaller model with the same vocabulary, which drafts where nothing else is found that agrees
        for long; ``model`` in `draft_sources`. None: there is no such model.
    draft_min
        The draft model's drafts of fewer tokens are not used.
    draft_p_min
        The draft model stops before a token that it gives a lower probability.
    draft_threads, draft_threads_batch, draft_cache_type_k, draft_cache_type_v, draft_placement
        As those of the model, for the draft model. With 0 threads it has as many as the model.
    past_answers_mib
        The limit of remembered answers in MiB, of all owners together.
    token_healing
        If True, completions heal their prompts, unless their requests say otherwise: the last word of a prompt is taken
        back, and the answer begins with it.
    steps_ahead
        If True, a decode step begins before Python has read the previous step's tokens, as long as nothing has changed.
        None: True if most layers are computed on a GPU, which would wait for Python between two steps.
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

    def n_threads(self) -> int:
        return self.threads if self.threads > 0 else default_threads()

    def adapts_threads(self) -> bool:
        """Return whether the engine may compute with fewer threads: not if their number was chosen."""
        return self.threads <= 0 and self.threads_batch <= 0

    def n_threads_batch(self) -> int:
        return self.threads_batch if self.threads_batch > 0 else self.n_threads()

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
        return {
            "n_threads": self.n_threads(),
            "n_threads_batch": self.n_threads_batch(),
            "adapt_threads": self.adapts_threads(),
        }
