"""The library without HTTP: generate, look, cancel. Run with ``python -P example.py [MODEL.gguf]``.

The ``-P`` keeps Python from importing the checkout's sources instead of the installed package.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from pyllmcancel import Engine, EngineConfig, RequestCancelled


def complete(engine: Engine) -> None:
    """Stream a completion to its end."""
    with engine.generate("def hello_world():\n", max_tokens=48, temperature=0.0) as stream:
        for delta in stream:
            print(delta.text, end="", flush=True)
    print(f"\n-- {stream.ending}\n")


def cancel_from_another_thread(engine: Engine) -> None:
    """Cancel in the middle of an answer; the stream raises, so a cut answer cannot be taken for a whole one."""
    n_tokens = 0
    try:
        with engine.generate("class Stack:\n", max_tokens=1000, ignore_eos=True) as stream:
            threading.Timer(0.2, stream.cancel).start()
            for delta in stream:
                n_tokens += len(delta.tokens)
    except RequestCancelled as error:
        assert stream.ending is not None and stream.ending.cancel_latency is not None
        print(f"-- {n_tokens} tokens came, then: {error.reason}, {error.usage}")
        print(f"-- the computation stopped {stream.ending.cancel_latency * 1e3:.1f} ms after cancel()\n")


def share_the_batch(engine: Engine) -> None:
    """Three at once, one of them cancelled: the other two do not notice."""
    prompts = ("import os\n", "def add(a, b):\n", "for i in range(")
    with ExitStack() as stack:
        streams = [stack.enter_context(engine.generate(prompt, max_tokens=24, temperature=0.0)) for prompt in prompts]
        streams[1].cancel()
        for prompt, stream in zip(prompts, streams, strict=True):
            try:
                text = "".join(delta.text for delta in stream)
            except RequestCancelled as error:
                text = f"<{error}>"
            print(f"{prompt!r} -> {text!r}")


def main() -> None:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with Engine.load(EngineConfig(model=model)) as engine:
        complete(engine)
        cancel_from_another_thread(engine)
        share_the_batch(engine)


if __name__ == "__main__":
    main()
