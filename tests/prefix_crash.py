"""Servers that are killed while they write prefixes to the disk: nothing wrong is ever restored.

``python -m tests.prefix_crash --rounds 50 --model FILE.gguf`` asks for answers with `--cache-disk`, cancels some, and
kills the server with SIGKILL at a random moment, again and again on the same folder. Every answer is compared with that
of a server without the folder, token for token. At the end, the time to the first token of a long prompt is measured
before and after such a restart.
"""

import argparse
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx

from tests.support.http_process import ServerProcess
from tests.support.tiny_models import write_tiny_llama

WORDS = (
    *("river", "stone", "light", "under", "seven", "maps", "of", "winter"),
    *("paper", "birds", "and", "the", "slow", "green", "engine", "turns"),
)
N_PROMPTS = 8
N_GENERATED = 6
SECONDS = 600.0


def prompts(seed: int) -> list[str]:
    """Prompts of about a hundred tokens, some of which begin alike."""
    generator = random.Random(seed)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(60, 120))) for _ in range(N_PROMPTS // 2)]
    return texts + [f"{text[: len(text) // 2]} {' '.join(generator.choices(WORDS, k=40))}" for text in texts]


def ask(url: str, prompt: str, n_predict: int = N_GENERATED) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "return_tokens": True, "draft_max": 0}
    answer = httpx.post(f"{url}/completion", json=body, timeout=SECONDS).raise_for_status()
    return answer.json()


def leave(url: str, prompt: str, seconds: float) -> None:
    """Ask, and close the connection soon."""
    with suppress(httpx.TimeoutException):
        httpx.post(f"{url}/completion", json={"prompt": prompt, "n_predict": 50}, timeout=seconds)


class Crashes:
    """Rounds on one folder.

    Attributes
    ----------
    found
        Counts of answers that were compared, of those that had restored tokens, of such tokens, and of files.
    """

    def __init__(self, options: tuple[str, ...], folder: Path, seed: int) -> None:
        self.found = Counter[str]()
        self._options = options
        self._with_disk = (*options, "--cache-disk", str(folder))
        self._folder = folder
        self._random = random.Random(seed)
        self._prompts = prompts(seed)
        self._expected: list[list[int]] = []

    def learn(self) -> None:
        """Get every answer from a server without the folder."""
        with ServerProcess(*self._options) as server:
            url = server.started().url
            self._expected = [ask(url, prompt)["tokens"] for prompt in self._prompts]
            stop(server)

    def round(self) -> None:
        with ServerProcess(*self._with_disk) as server:
            url = server.started().url
            for number in self._random.sample(range(N_PROMPTS), 2):
                self.compare(number, ask(url, self._prompts[number]))
            kill = threading.Timer(self._random.uniform(0.0, 3.0), server.signal, (signal.SIGKILL,))
            kill.start()
            with suppress(httpx.TransportError):  # it was killed
                while True:
                    number = self._random.randrange(N_PROMPTS)
                    if self._random.random() < 0.3:
                        leave(url, self._prompts[number], self._random.uniform(0.05, 0.5))
                    else:
                        self.compare(number, ask(url, self._prompts[number]))
                    time.sleep(self._random.uniform(0.0, 0.3))  # a moment in which prefixes are written
            kill.join()
            server.wait()
            self.found["damaged files"] += server.log.count(" is not used: ")
        self.found["unfinished files"] += len(list(self._folder.glob("*.tmp")) + list(self._folder.glob(".*.tmp")))

    def compare(self, number: int, answer: dict[str, Any]) -> None:
        assert answer["tokens"] == self._expected[number], f"a wrong answer to prompt {number}: {answer}"
        self.found["answers"] += 1
        self.found["with cached tokens"] += answer["timings"]["cache_n"] > 0
        self.found["cached tokens"] += answer["timings"]["cache_n"]

    def first_token(self, n_tokens: int) -> tuple[float, float, int]:
        """Return the seconds to the first token of a prompt before and after a kill, and how many tokens were there."""
        prompt: Any = [100 + 7 * n % 800 for n in range(n_tokens)]
        with ServerProcess(*self._with_disk) as server:
            before = timed(server.started().url, prompt)[0]
            wait_for_writes(server)
            server.signal(signal.SIGKILL)
            server.wait()
        with ServerProcess(*self._with_disk) as server:
            after, n_cached = timed(server.started().url, prompt)
            stop(server)
        return before, after, n_cached


def timed(url: str, prompt: Any) -> tuple[float, int]:
    began = time.monotonic()
    answer = ask(url, prompt, 1)
    return time.monotonic() - began, answer["timings"]["cache_n"]


def wait_for_writes(server: ServerProcess) -> None:
    for _ in range(600):
        if "pyllmcancel_disk_prefixes_written_total 0.0" not in server.http.get("/metrics").text:
            return
        time.sleep(0.1)
    raise TimeoutError("nothing was written")


def stop(server: ServerProcess) -> None:
    server.signal()
    server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", type=Path, help="a GGUF file of an attention model [a tiny one with random weights]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--first-token", type=int, default=4000, metavar="N", help="tokens of the long prompt; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or write_tiny_llama(Path(folder) / "model.gguf", n_ctx_train=8192)
        options = ("--model", str(model), "--threads", str(arguments.threads), "--ctx-size", "8192")
        crashes = Crashes(options, Path(folder) / "prefixes", arguments.seed)
        crashes.learn()
        for number in range(arguments.rounds):
            crashes.round()
            print(f"round {number + 1}: {dict(crashes.found)}", flush=True)  # noqa: T201
        print(f"{arguments.rounds} kills, no wrong answer")  # noqa: T201
        if arguments.first_token:
            before, after, n_cached = crashes.first_token(arguments.first_token)
            text = (
                f"first token of {arguments.first_token:,} tokens: {before:.2f} s before, {after:.2f} s after a restart"
            )
            print(f"{text}, with {n_cached:,} tokens from the disk")  # noqa: T201


if __name__ == "__main__":
    main()
