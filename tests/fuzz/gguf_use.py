"""Load a model file in a process of its own, use it as the engine would, and tell how that went."""

import argparse
import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from pyllmcancel import _native
from pyllmcancel.embeddings.workload import pooling_of
from pyllmcancel.errors import ContextError, ModelLoadError
from pyllmcancel.sampling import SamplingParams

MAX_BYTES = 8 << 30
MAX_SECONDS = 5
LOADED, REFUSED, RAISED = 0, 3, 4


def use(path: Path, **options: Any) -> str:
    """Load the model, read all that it says of itself, and compute some tokens; returns ``loaded`` or an error's text.

    Raises what is neither ModelLoadError nor ContextError.
    """
    try:
        model = _native.Model.load(path, **{"require_vocabulary": False} | options)
        said = (model.n_ctx_train, model.n_embd, model.n_layer, model.n_swa, model.n_params, model.size, model.n_vocab)
        assert all(number >= 0 for number in said), said
        str((model.description, model.metadata, model.chat_template, model.special_tokens, model.adds_bos))
        compute(model)
    except (ModelLoadError, ContextError) as error:
        return str(error)
    return "loaded"


def compute(model: Any) -> None:
    try:
        tokens = model.tokenize("It was a night, größer 日.")[:40]
        for token in (*tokens, 0, model.n_vocab - 1):
            model.piece(token)
    except RuntimeError:  # a vocabulary for tests has no words: llama.cpp says so
        tokens = []
    tokens = tokens or [index % model.n_vocab for index in range(11)]
    if pooling_of(model, "auto") is not None:
        embedder = _native.Embedder(model, n_ctx=64, n_seq_max=2, n_batch=64, n_threads=1)
        embedder.open(0, tokens[: embedder.n_text_max], _native.CancelFlag())
        embedder.step([(0, len(tokens[: embedder.n_text_max]))])
        return
    context = _native.Context(model, n_ctx=128, n_seq_max=2, n_batch=64, n_threads=1)
    for seq in range(2):
        sampler = _native.Sampler(model, SamplingParams(temperature=0.0))
        context.open(seq, tokens, sampler, _native.CancelFlag())
    (row,) = context.step([(0, len(tokens))]).rows
    # Logits that are not numbers are the request's fault, and no token.
    context.step([(1, len(tokens))] if row.token < 0 else [(0, 1), (1, len(tokens))])


def use_in_child(path: Path, **options: Any) -> tuple[str, str]:
    """Do `use` in a forked child; returns ``loaded``, ``refused``, ``raised`` or ``died``, and why."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        # The C library's exit, not os._exit: builds that count lines write their counts then.
        ctypes.CDLL(None).exit(_child(path, write, options))
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace").strip()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "died", f"{said[-300:]} {signal.Signals(os.WTERMSIG(status)).name}"
    return {LOADED: "loaded", REFUSED: "refused"}.get(os.WEXITSTATUS(status), "raised"), said


def _child(path: Path, pipe: int, options: dict[str, Any]) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if "PYLLMCANCEL_SANITIZED" not in os.environ:  # a sanitizer's shadow memory is larger than any limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    # What llama.cpp says of a failed assertion, without the debugger's backtrace, is why the child died.
    os.environ["GGML_NO_BACKTRACE"] = "1"
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    try:
        said = use(path, **options)
    except BaseException:
        os.write(pipe, traceback.format_exc(limit=-3).encode(errors="backslashreplace")[-4000:])
        return RAISED
    os.write(pipe, said.encode(errors="surrogateescape")[-4000:])
    return LOADED if said == "loaded" else REFUSED


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Use each file in a child process; print outcomes and reasons as JSON."
    )
    parser.add_argument(
        "--vocabulary", action="store_true", help="refuse models that can neither read text nor write it"
    )
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args()
    outcomes = {str(path): use_in_child(path, require_vocabulary=options.vocabulary) for path in options.files}
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    main()
