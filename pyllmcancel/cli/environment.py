"""Report llama-server's environment variables, of which none is read, and ours for the same thing."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping

from pyllmcancel.cli.options import variable_of
from pyllmcancel.cli.serve_options import NAMES
from pyllmcancel.errors import UsageError

logger = logging.getLogger("pyllmcancel.serve")

PREFIX = "LLAMA_ARG_"
# In these variables the rest of the name is no spelling of an option.
OTHER_NAMES = {
    "BATCH": "batch-size",
    "UBATCH": "ubatch-size",
    "N_PARALLEL": "parallel",
    "SPEC_DRAFT_HF_REPO": "hf-repo-draft",
    "SPEC_DRAFT_CACHE_TYPE_K": "cache-type-k-draft",
    "SPEC_DRAFT_CACHE_TYPE_V": "cache-type-v-draft",
    "ENDPOINT_METRICS": "metrics",
    "ENDPOINT_SLOTS": "slots",
    "THINK": "reasoning-format",
    "THINK_BUDGET": "reasoning-budget",
    "THINK_BUDGET_MESSAGE": "reasoning-budget-message",
}
# With these variables somebody wanted a locked server, so it must not start open.
LOCKS = {
    "LLAMA_API_KEY": "api-key",
    "LLAMA_ARG_API_KEY_FILE": "api-key-file",
    "LLAMA_ARG_SSL_KEY_FILE": "ssl-key-file",
    "LLAMA_ARG_SSL_CERT_FILE": "ssl-cert-file",
}


def check_environment(arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Warn of variables that are set and not read; raise UsageError if the server would be open for that reason."""
    for name, option in LOCKS.items():
        if name in environment and getattr(arguments, option.replace("-", "_")) is None:
            raise UsageError(f"{name} is set, but not read here: set {variable_of(option)}, or unset it")
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in LOCKS:
            logger.warning("%s is set, but not read here%s", name, _instead(name.removeprefix(PREFIX)))


def _instead(name: str) -> str:
    option = NAMES.get("--" + OTHER_NAMES.get(name, name.lower().replace("_", "-")))
    return "" if option is None else f": set {variable_of(option)}"
