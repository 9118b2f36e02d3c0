"""pyllmcancel, as it is installed beside the benchmark."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.metadata import version as installed_version

from bench.peers.protocol import HOST, LogWords, PeerFacts, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Pyllmcancel(PeerFacts):
    """The package that the benchmark's own Python has installed."""

    options: tuple[str, ...] = ()

    def version(self) -> str:
        return installed_version("pyllmcancel")

    def command(self, settings: Settings) -> list[str]:
        # -P: the checkout's own folder has no compiled module and must not hide the installed package.
        return [
            *(sys.executable, "-P", "-m", "pyllmcancel", "serve"),
            *("--model", str(settings.model), "--host", HOST, "--port", str(settings.port)),
            *("--threads", str(settings.threads), "--parallel", str(settings.parallel)),
            *("--ctx-size", str(settings.ctx_size), *self.options),
        ]


PEER = Pyllmcancel(
    name="pyllmcancel",
    notes="defaults; `--parallel` divides the context's cells among its slots",
    session_header="X-Session-Id",
    log_words=LogWords(left=re.compile(r"request \S+ cancelled \(disconnect\)")),
)
