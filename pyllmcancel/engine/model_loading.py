"""Loading a model, and making what computes with it: generation or, for a model that pools, embeddings."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyllmcancel.embeddings.workload import Embedding, pooling_of
from pyllmcancel.engine.cell_layout import cell_layout, context_options, report
from pyllmcancel.engine.draft_loading import (
    check_drafting,
    check_heads,
    has_draft_model,
    has_heads,
    load_draft_model,
)
from pyllmcancel.engine.draft_model import DraftModel
from pyllmcancel.engine.fitting import placed, summary
from pyllmcancel.engine.generation import Generation
from pyllmcancel.engine.heads import Heads, n_states
from pyllmcancel.engine.host_memory import available_memory, file_size
from pyllmcancel.engine.state_identity import HASHES, state_identity
from pyllmcancel.errors import LoadCancelled, UsageError, error_text
from pyllmcancel.models import packaged_model_path
from pyllmcancel.parts import files_of
from pyllmcancel.pooling import Pooling
from pyllmcancel.scheduling.disk_floor import DiskFloor
from pyllmcancel.scheduling.prefix_folder import PrefixFolder

if TYPE_CHECKING:
    from pyllmcancel._native import Context, MediaEncoder, Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")

CHUNK = 4 << 20  # bytes that are read at once
# The wait for the hash of a model's file, if there may be prefixes of it. After that, they are found later.
IDENTITY_SECONDS = 10.0
Progress = Callable[[float], bool | None]


def load_workload(config: EngineConfig, native: Any, progress: Progress | None) -> Generation | Embedding:
    """Load the model that `config` names, and all that goes with it. Parameters and errors are those of `Engine.load`.

    What can be checked without the weights is checked first: to load them may take minutes.
    """
    config = placed(config, native, progress)
    if has_draft_model(config):
        check_drafting(config, native)
    if has_heads(config):
        check_heads(config, native)
    model = load_model(config, native, progress)
    pooling = pooling_of(model, config.pooling, required=config.embeddings)
    workload: Generation | Embedding
    if pooling is None:
        draft_model = load_draft_model(config, native, progress) if has_draft_model(config) else None
        workload = generation_on(model, config, native, draft_model=draft_model)
    else:
        if config.mmproj is not None:
            logger.warning("a model that pools takes texts only: %s is not used", config.mmproj)
        workload = Embedding.on(model, pooling, config, native)
        if pooling is Pooling.RANK and len(model.labels) > 1:
            logger.info("documents are ranked by their score for %r, of %s", model.labels[0], model.labels)
    if (why := workload.facts.varies_because) is None:
        logger.info("an answer depends on its own request only")
    else:
        logger.info("the last bits of an answer may depend on other requests: %s", why)
    return workload


def load_model(config: EngineConfig, native: Any, progress: Progress | None) -> Model:
    """Load the weights, and say where they are."""
    path = Path(config.model or packaged_model_path())
    if config.mmap and progress is not None:
        progress = read_first(path, progress)
    model: Model = native.Model.load(
        path,
        placement=config.placement,
        mmap=config.mmap,
        mlock=config.mlock,
        lora=[adapter for adapter, _ in config.lora],
        heads=has_heads(config),
        progress=progress,
    )
    logger.info("placement: %s", summary(model.layers_by_device))
    if has_heads(config):
        logger.info("answers are drafted by the model's own heads")
    if (variant := native.cpu_variant()) is not None:
        logger.info("the CPU's back end: %s", variant)
    return model


def generation_on(model: Model, config: EngineConfig, native: Any, *, draft_model: Model | None = None) -> Generation:
    """Make a context on a loaded model, and generate in it; ContextError if the context cannot be made, ModelLoadError
    if `config.mmproj` is not a projector for this model. The draft model was checked by `draft_loading`.
    """
    encoder = load_encoder(model, config, native)
    report(cell_layout(model, config), config)
    options = context_options(model, config)
    if has_heads(config):
        options["n_states"] = n_states(model, options["n_seq_max"], options["n_ctx"])
    context = native.Context(
        model,
        **options,
        **config.thread_options(),
        checkpoint_interval=config.checkpoint_interval,
        n_checkpoints=config.ctx_checkpoints,
        checkpoint_bytes=config.checkpoint_mib << 20,
    )
    drafting = None if draft_model is None else DraftModel.on(draft_model, context, config, native)
    if has_heads(config):
        drafting = Heads.on(model, context, config, native)
    if drafting is not None and encoder is not None:
        drafting.take_turns(encoder)
    return Generation(context, config, native, drafting, disk_floor(context, config, native), encoder=encoder)


def load_encoder(model: Model, config: EngineConfig, native: Any) -> MediaEncoder | None:
    """Load the projector that `config` names, if it names one; ModelLoadError if it is not one for this model."""
    if config.mmproj is None:
        return None
    encoder: MediaEncoder = native.MediaEncoder(
        model,
        config.mmproj,
        n_threads=config.thread_options()["n_threads_batch"],
        offload=config.mmproj_offload,
        image_min_tokens=config.image_min_tokens,
        image_max_tokens=config.image_max_tokens,
    )
    logger.info("projector: %s", config.mmproj)
    return encoder


def read_uncached(files: Sequence[Path], progress: Progress) -> bool:
    """Read what the system's cache lacks; return whether anything was read. Does nothing but on Linux.

    llama.cpp has the kernel read the whole file in one call, which reports nothing and cannot be cancelled.

    LoadCancelled if `progress`, which is called after each chunk that was read, returns False.
    """
    if sys.platform != "linux":
        return False
    total = sum(file.stat().st_size for file in files)
    buffer, first = bytearray(CHUNK), bytearray(1)
    done, was_read = 0, False
    for file in files:
        with file.open("rb", buffering=0) as opened:
            descriptor = opened.fileno()
            for offset in range(0, file.stat().st_size, CHUNK):
                if not is_cached(descriptor, offset, first):
                    os.preadv(descriptor, [buffer], offset)
                    was_read = True
                    if progress((done + offset) / total) is False:
                        raise LoadCancelled("the load was cancelled while the model's file was read")
        done += file.stat().st_size
    return was_read


def is_cached(descriptor: int, offset: int, first: bytearray) -> bool:
    """Return whether the byte at `offset` can be read without waiting for a disk."""
    if sys.platform != "linux":
        return True
    try:
        return os.preadv(descriptor, [first], offset, os.RWF_NOWAIT) > 0
    except OSError:  # it would wait, or this file system cannot tell
        return False


def read_first(path: Path, progress: Progress) -> Progress:
    """Read a model's files ahead, if memory can hold them; return the progress of the rest of the load."""
    files = [file for file in files_of(path) if file.is_file()]
    memory = available_memory()
    if memory is not None and file_size(path) > memory.available:
        return progress  # the end of the file would drive its beginning out of the cache again
    if not read_uncached(files, lambda fraction: progress(fraction / 2)):
        return progress
    return lambda fraction: progress((1 + fraction) / 2)


def disk_floor(context: Context, config: EngineConfig, native: Any) -> DiskFloor | None:
    """Open the folder; None if none is configured. If the folder cannot be used, a warning says so, and the engine runs
    without it: a cache is not worth an outage.
    """
    if config.cache_disk is None:
        return None
    if not context.can_copy:
        logger.warning("no prefixes are kept on disk: without flash attention they cannot be copied")
        return None
    folder = config.cache_disk
    try:
        files = PrefixFolder(folder, config.cache_disk_mib << 20)
    except (UsageError, OSError) as error:
        why = error if isinstance(error, UsageError) else f"{folder} cannot be used: {error_text(error)}"
        logger.warning("no prefixes are kept on disk: %s", why)
        return None
    disk = DiskFloor(
        files, partial(state_identity, context, config, native, folder / HASHES), native.SwappedPrefix.blank
    )
    if len(files):
        disk.wait_until_known(IDENTITY_SECONDS)
    return disk
