"""Digests of everything that an answer depends on besides its request, so that another server can go on with it."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import asdict
from pathlib import Path
from zlib import crc32

from pyllmcancel import __version__
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.engine.engine import Engine
from pyllmcancel.media.values import MediaRuns
from pyllmcancel.models import packaged_model_path
from pyllmcancel.parts import files_of
from pyllmcancel.requests.request import Request
from pyllmcancel.server.config import ServerConfig

# Fields of the engine's configuration that no answer depends on: names, places, and what only takes or saves time.
WITHOUT_EFFECT = (
    "model alias lora mmproj draft_model cache_disk cache_disk_mib cache_ram parallel threads threads_batch"
    " draft_threads draft_threads_batch cached_sequences max_queue max_queue_tokens refuse_late max_running itl_target"
    " max_step_seconds media_cache_mib request_timeout queue_timeout idle_timeout"
)
N_SAMPLES, SAMPLE_BYTES = 256, 1 << 14  # of a file: two fine-tunings of a model differ nearly everywhere


def server_digest(engine: Engine, config: ServerConfig) -> str | None:
    """Return a digest of the model, the build and the settings; None if an answer may depend on more than its request.

    Reads samples of the model's files; OSError if that fails.
    """
    if engine.varies_because is not None or config.engine.lora:  # whose scales can be changed
        return None
    native, own = compiled_module(), config.engine
    files = [*files_of(Path(own.model or packaged_model_path())), *([own.mmproj] if own.mmproj is not None else [])]
    settings = {name: value for name, value in asdict(own).items() if name not in WITHOUT_EFFECT.split()}
    facts = (
        [sample_of(path) for path in files],
        (__version__, native.cpu_variant(), sorted(native.kernel_features()), Path(native.__file__).stat().st_size),
        (settings, engine.n_ctx),
        (config.sampling, sorted(config.sampling_given), config.n_predict, config.chat_template, config.chat),
        (config.limits, config.media, config.verbose),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def sample_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(b"%d" % size)
        for i in range(N_SAMPLES):
            file.seek(size * i // N_SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def prompt_digest(request: Request) -> int:
    """Return a digest of the prompts' texts and pictures: a template may write another date tomorrow."""
    digest = 0
    for choice in request.choices[:: request.params.n]:
        # The ids of a picture's tokens are its process's own.
        digest = crc32(array("i", [max(token, -1) for token in choice.prompt]).tobytes(), digest)
        for content in choice.media.digests if isinstance(choice.media, MediaRuns) else ():
            digest = crc32(content, digest)
    return digest
