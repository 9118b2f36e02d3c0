"""Sum the seconds of a build's compilers by part, from its ``.ninja_log``.

python tools/compile_times.py build/cp311-abi3-linux_x86_64
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

# The first that an object's path contains.
PARTS = {
    "llama_chat.dir": "llama.cpp's chat layer",
    "pyllmcancel_core.dir": "native",
    "_native.": "native",
    "mtmd.dir": "mtmd",
    "ggml-cpu": "ggml-cpu",
    "llama.cpp/": "the rest of llama.cpp",
}


def main(build: Path) -> None:
    seconds: dict[str, float] = {}
    for line in (build / ".ninja_log").read_text("utf-8").splitlines()[1:]:
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000  # the last time that it was made
    sums: dict[str, list[float]] = defaultdict(list)
    for output, one in seconds.items():
        if output.endswith((".o", ".obj")):
            sums[next((part for key, part in PARTS.items() if key in output), "others")].append(one)
    sums["all"] = [taken for times in sums.values() for taken in times]
    for part, taken in sums.items():
        sys.stdout.write(f"{part:24}{sum(taken):8.0f} s in {len(taken)} objects\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
