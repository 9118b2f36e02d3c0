"""llama-server's other names for what our options do: shortcuts, levels of verbosity, letters for samplers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyllmcancel.cli.options import whole
from pyllmcancel.sampling import SAMPLER_LETTERS

CODER = {"port": 8012, "ubatch_size": 1024, "batch_size": 1024, "ctx_size": 0}
GPT_OSS = {
    "port": 8013,
    "ubatch_size": 2048,
    "batch_size": 32_768,
    "parallel": 2,
    "ctx_size": 262_144,
    "temp": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.01,
}
EMBEDDER = {
    "port": 8011,
    "ubatch_size": 2048,
    "batch_size": 2048,
    "parallel": 32,
    "ctx_size": 65_536,
    "embeddings": True,
}


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
    "--embd-gemma-default": EMBEDDER
    | {
        "hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
        "hf_file": "embeddinggemma-300M-qat-Q4_0.gguf",
    },
}
LOAD_MODES = {
    "auto": {},
    "none": {"mmap": False, "mlock": False},
    "mmap": {"mmap": True, "mlock": False},
    "mlock": {"mmap": False, "mlock": True},
    "mmap+mlock": {"mmap": True, "mlock": True},
}
VERBOSE = {"log_level": "debug", "verbose": True}
VERBOSITIES = ("error", "error", "warning", "info", "debug")  # by llama-server's numbers; larger numbers mean the last


def add_spellings(parser: argparse.ArgumentParser) -> None:
    """Add the shortcuts, and the spellings that the help does not show."""
    text = "Models of the hub with llama-server's settings, which later options override."
    shortcuts = parser.add_argument_group("shortcuts", text)
    for name, settings in SHORTCUTS.items():
        options: Any = {"action": Settings, "settings": settings, "dest": argparse.SUPPRESS}
        shortcuts.add_argument(name, nargs=0, help=settings["hf_repo"], **options)
    _add(parser, "-lm", "--load-mode", action=LoadMode, metavar="MODE", choices=tuple(LOAD_MODES))
    _add(parser, "-no-kvu", action="store_const", dest="kv_unified", const=False)
    _add(parser, "-nkvo", action="store_const", dest="kv_offload", const=False)
    _add(parser, "--no-mmproj", action="store_const", dest="mmproj_auto", const=False)
    _add(parser, "-v", "--verbose", "--log-verbose", action=Settings, nargs=0, settings=VERBOSE)
    parser.set_defaults(verbose=False)
    _add(parser, "--log-disable", action="store_const", dest="log_level", const="error")
    _add(parser, "--log-jsonl", action="store_const", dest="log_format", const="json")
    _add(parser, "--no-log-jsonl", action="store_const", dest="log_format", const="text")
    _add(parser, "-lv", "--verbosity", "--log-verbosity", dest="log_level", type=level)
    _add(parser, "--sampler-seq", "--sampling-seq", dest="samplers", type=samplers)


def _add(parser: argparse.ArgumentParser, *names: str, dest: str = argparse.SUPPRESS, **options: Any) -> None:
    parser.add_argument(*names, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)


class Settings(argparse.Action):
    """Sets several options at once; later options on the command line override them."""

    def __init__(self, *args: Any, settings: dict[str, Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self.settings = settings

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        _values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        vars(namespace).update(self.settings)


class LoadMode(argparse.Action):
    """Sets ``--mmap`` and ``--mlock``."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        vars(namespace).update(LOAD_MODES[str(values)])


def level(text: str) -> str:
    """Return the word of ``--log-level`` for llama-server's number."""
    return VERBOSITIES[min(max(whole(text), 0), len(VERBOSITIES) - 1)]


def samplers(text: str) -> str:
    """Return the samplers' names for llama-server's letters."""
    unknown = [letter for letter in text if letter not in SAMPLER_LETTERS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no sampler {unknown[0]!r}; the samplers are {''.join(SAMPLER_LETTERS)}"
        )
    return ";".join(SAMPLER_LETTERS[letter] for letter in text)
