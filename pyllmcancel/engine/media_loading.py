"""Loading a model's projector, which makes embeddings of pictures and sounds."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pyllmcancel.media.library import MediaLibrary

if TYPE_CHECKING:
    from pyllmcancel._native import Context, MediaEncoder, Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.engine")


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


def library_of(encoder: MediaEncoder, context: Context, config: EngineConfig, native: Any) -> MediaLibrary:
    return MediaLibrary(
        encoder,
        context.model,
        new_flag=native.CancelFlag,
        image_size=native.image_size,
        cache_bytes=config.media_cache_mib << 20,
        n_batch=context.n_batch,
    )
