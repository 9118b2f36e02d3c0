"""llama.cpp's templates, in forms of conversations, by two engines: what each renders, and in what time.

Both are given the same variables: those that llama.cpp's chat layer asks for, its analysis of the template included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.tables import head, line
from bench.templates.forms import forms
from pyllmcancel._native import ChatTemplate
from pyllmcancel.chat.jinja_engine import Engine, TemplateFault
from pyllmcancel.errors import InvalidRequestError

LLAMA_CPP = Path(__file__).parents[2] / "vendor" / "llama.cpp"
JINJA = [f"jinja/{name}.cpp" for name in ("lexer", "parser", "runtime", "string", "value")]


@dataclass(slots=True)
class Rendering:
    text: str | None
    error: str
    seconds: float


class Recorder:
    """An engine that keeps what it was asked, and what it said."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.asked: dict[str, Rendering] = {}

    def caps(self, source: str, /) -> dict[str, bool]:
        return self.engine.caps(source)

    def render(self, source: str, variables: str, /) -> str:
        begin = time.perf_counter()
        try:
            text = self.engine.render(source, variables)
        except TemplateFault as error:
            self.asked[variables] = Rendering(None, str(error), time.perf_counter() - begin)
            raise
        self.asked[variables] = Rendering(text, "", time.perf_counter() - begin)
        return text


class LlamaCpp:
    """llama.cpp's own engine, in a process."""

    def __init__(self, folder: Path) -> None:
        program = folder / "llama_cpp_jinja"
        sources = [*JINJA, "json.cpp", "unicode.cpp"]
        command = ["c++", "-std=c++17", "-O2", "-w", str(Path(__file__).with_name("llama_cpp_jinja.cpp"))]
        command += [f"-I{LLAMA_CPP / part}" for part in ("common", "vendor", "ggml/include", "")]
        subprocess.run([*command, *(str(LLAMA_CPP / "common" / name) for name in sources), "-o", program], check=True)
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def render(self, source: str, variables: str) -> Rendering:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"source": source, "variables": variables}), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline())
        return Rendering(answer.get("text"), answer.get("error", ""), answer["seconds"])

    def close(self) -> None:
        self._process.communicate()


@dataclass(slots=True)
class Row:
    """One template."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compared(path: Path, llama_cpp: LlamaCpp) -> Row:
    source, row, recorder = path.read_text("utf-8"), Row(path.stem), Recorder()
    template = ChatTemplate(source, recorder, "<s>", "</s>")
    for name, form in forms().items():
        recorder.asked.clear()
        try:
            template.apply(json.dumps(form).encode())
        except InvalidRequestError as error:
            row.outcomes["form refused"] += 1
            row.notes.append(f"{name}: refused: {error}")
        for variables, ours in recorder.asked.items():
            theirs = llama_cpp.render(source, variables)
            row.ours.append(ours.seconds)
            row.theirs.append(theirs.seconds)
            outcome = outcome_of(ours, theirs)
            row.outcomes[outcome] += 1
            if outcome not in ("same", "both refuse"):
                row.notes.append(f"{name}: {outcome}: {ours.error or theirs.error or difference(ours, theirs)}")
    return row


def outcome_of(ours: Rendering, theirs: Rendering) -> str:
    if ours.text is None or theirs.text is None:
        return (
            "both refuse"
            if ours.text == theirs.text
            else "Jinja2 refuses"
            if ours.text is None
            else "llama.cpp refuses"
        )
    return "same" if ours.text == theirs.text else "other text"


def difference(ours: Rendering, theirs: Rendering) -> str:
    a, b = ours.text or "", theirs.text or ""
    at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return f"{a[max(at - 30, 0) : at + 40]!r} against {b[max(at - 30, 0) : at + 40]!r}"


OUTCOMES = ("same", "other text", "both refuse", "llama.cpp refuses", "Jinja2 refuses", "form refused")


def milliseconds(values: list[float], share: float) -> str:
    return f"{statistics.quantiles(values, n=100)[round(share * 100) - 1] * 1000:.2f}"


def report(rows: list[Row]) -> list[str]:
    times = [f"{engine} {name}, ms" for engine in ("Jinja2", "llama.cpp") for name in ("p50", "p99")]
    lines = head(["template", *OUTCOMES, *times])
    everything = Row("all")
    for row in rows:
        everything.outcomes += row.outcomes
        everything.ours += row.ours
        everything.theirs += row.theirs
    for row in [*rows, everything]:
        cells: list[Any] = [row.outcomes[outcome] for outcome in OUTCOMES]
        cells += [milliseconds(values, share) for values in (row.ours, row.theirs) for share in (0.5, 0.99)]
        lines.append(line([row.name, *cells]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.templates", description=__doc__)
    parser.add_argument("--notes", action="store_true", help="what differs, line by line")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        llama_cpp = LlamaCpp(Path(folder))
        rows = [compared(path, llama_cpp) for path in sorted((LLAMA_CPP / "models" / "templates").glob("*.jinja"))]
        llama_cpp.close()
    notes = [f"{row.name}: {note}" for row in rows for note in row.notes if options.notes]
    sys.stdout.write("\n".join([*report(rows), *notes, ""]))


if __name__ == "__main__":
    main()
