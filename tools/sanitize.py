"""Build core and llama.cpp with a sanitizer, and drive them by the native tests, the races and the storm.

``python tools/sanitize.py thread`` (TSan) or ``python tools/sanitize.py address`` (ASan with UBSan); Linux and GCC.
Each has a build, and an environment to install into, of its own under ``build/sanitize``; one that was broken off goes
on. The exit status is 1 when there is a report that no file in ``tools/sanitizers`` explains.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.support.tiny_models import write_tiny_llama  # noqa: E402 - found by the line above

HERE = ROOT / "tools" / "sanitizers"
# Fakes of the core are Python alone.
PYTEST = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-n0", "--timeout", "1200", "-k", "not fake")
DRIVERS = {
    "native": (*PYTEST, "-m", "not long", "tests/native"),
    "races": (
        *(*PYTEST, "-m", ""),
        "tests/races/test_real_engine.py",
        "tests/races/test_draft_model_engine.py",
        "tests/races/test_heads_engine.py",
        "tests/races/test_full_cache.py",
        "tests/races/test_adapters.py",
    ),
    "vectors": (
        *(*PYTEST, "-m", ""),
        "tests/embedding/test_abort_truth.py",
        "tests/embedding/test_contract.py",
        "tests/embedding/test_real_engine.py",
    ),
    "servers": (
        *(*PYTEST, "-m", ""),
        "tests/http/test_picture_processes.py",
        "tests/http/test_sound_processes.py",
        "tests/http/test_draft_model_server.py",
        "tests/http/test_cache_disk.py::test_a_prompt_goes_on_where_it_was_after_a_kill",
        "tests/http/test_forced_calls.py::test_a_call_can_be_forced[packaged-required-whole]",
        "tests/http/test_forced_calls.py::test_a_call_can_be_forced[packaged-required-stream]",
    ),
    "storm": ("-m", "bench.scenarios", "storm", "--threads", "2", "--runs", "300"),
}
# At the exit every interpreter leaves memory behind. Ours is what was allocated by the extension module.
OURS = "_native.abi3.so"
# GCC's UBSan, beside ASan, heeds no options: it writes to stderr, and what is to be suppressed is ours to leave out.
UNDEFINED = re.compile(r"^\S+:\d+:\d+: runtime error: .*(?:\n +#\d.*)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """A build with `flags`, run with `libraries` loaded first, without the tests `left_out`.

    Each of `faults` is a function of the canary.
    """

    name: str
    flags: str
    libraries: tuple[str, ...]
    faults: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "sanitize" / self.name

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def reports(self) -> Path:
        return self.folder / "reports"


SANITIZERS = {
    # TSan keeps a stack of 65,536 calls at most, and ends the process beyond; std::regex calls itself more often.
    "thread": Sanitizer("thread", "thread", ("libtsan.so",), ("thread",), ("tests/native/test_long_words.py",)),
    # libstdc++ beside ASan: it must be there before ASan looks for what it intercepts, and Python brings none.
    "address": Sanitizer(
        "address", "address,undefined", ("libasan.so", "libubsan.so", "libstdc++.so.6"), ("address", "undefined")
    ),
}


def main() -> int:
    arguments = parse()
    sanitizer = SANITIZERS[arguments.sanitizer]
    if not arguments.no_build:
        build(sanitizer)
    shutil.rmtree(sanitizer.reports, ignore_errors=True)
    sanitizer.reports.mkdir(parents=True)
    listen(sanitizer)
    failed = [name for name in arguments.only or DRIVERS if not drive(sanitizer, name)]
    found = reports(sanitizer)
    for text in found:
        say(text)
    say(f"{sanitizer.name}: {len(found)} reports; failed: {', '.join(failed) or 'none'}")
    return 1 if found or failed else 0


def build(sanitizer: Sanitizer) -> None:
    """Install into an environment whose packages are this one's, but for pyllmcancel itself."""
    packages = sanitizer.folder / "venv" / "lib" / f"python3.{sys.version_info[1]}" / "site-packages"
    if not sanitizer.python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", str(sanitizer.folder / "venv")])
    # An editable install's own .pth files are not read from there: its finder would come before everything else. The
    # checkout is last: tests and benchmarks come from there, the package does not.
    own = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "packages.pth").write_text("\n".join([*own, str(ROOT)]) + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "--python", str(sanitizer.python), "install", "--no-deps"]
    command += [
        "--no-build-isolation",
        f"--config-settings=build-dir={sanitizer.folder / 'cmake'}",
        "--config-settings=install.strip=false",
    ]
    command += [f"--config-settings=cmake.define.PYLLMCANCEL_SANITIZE={sanitizer.flags}", str(ROOT)]
    run(command)


def environment(sanitizer: Sanitizer) -> dict[str, str]:
    """Return the variables of the processes under test, and of their children."""
    compiler = os.environ.get("CC", "cc")
    found = [text([compiler, f"-print-file-name={library}"]).strip() for library in sanitizer.libraries]
    log = f"log_path={sanitizer.reports / 'report'}"
    return os.environ | {
        "LD_PRELOAD": " ".join(found),
        "PYTHONMALLOC": "malloc",
        # Reports count, not the status; a second lock's stack is kept; more history, since decodes are long.
        "TSAN_OPTIONS": f"{log} exitcode=0 history_size=4 second_deadlock_stack=1 suppressions={HERE / 'thread.supp'}",
        # Tests ask for contexts that no machine has memory for. The storm would count freed memory that is kept back.
        "ASAN_OPTIONS": f"{log}:allocator_may_return_null=1:detect_leaks=1:quarantine_size_mb=8",
        "LSAN_OPTIONS": "exitcode=0:print_suppressions=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYLLMCANCEL_SANITIZED": sanitizer.name,
    }


def listen(sanitizer: Sanitizer) -> None:
    """Have each fault of the canary reported, or refuse: a sanitizer that is not at work reports nothing either."""
    library = sanitizer.folder / "canary.so"
    flags = [f"-fsanitize={sanitizer.flags}", "-shared", "-fPIC", "-g", "-O1"]
    run([os.environ.get("CC", "cc"), *flags, str(HERE / "canary.c"), "-o", str(library)])
    for fault in sanitizer.faults:
        code = f"import ctypes; ctypes.CDLL({str(library)!r}).{fault}(3)"
        done = subprocess.run(
            [sanitizer.python, "-c", code], env=environment(sanitizer), check=False, capture_output=True, text=True
        )
        files = list(sanitizer.reports.iterdir())
        if "canary.c" not in done.stderr + "".join(file.read_text(encoding="utf-8") for file in files):
            raise SystemExit(f"{sanitizer.name}: the fault `{fault}` of tools/sanitizers/canary.c was not reported")
        for file in files:
            file.unlink()


def drive(sanitizer: Sanitizer, name: str) -> bool:
    say(f"{sanitizer.name}: {name}")
    command = [str(sanitizer.python), "-P", *DRIVERS[name]]
    if "pytest" in command:
        command += [f"--deselect={test}" for test in sanitizer.left_out]
    if name == "storm":
        # Some milliseconds a token even so: instrumented code takes ten times as long.
        model = write_tiny_llama(sanitizer.folder / "tiny.gguf")
        command += ["--model", str(model), "--log", str(sanitizer.reports / "storm-servers.stderr")]
    with (sanitizer.reports / f"{name}.stderr").open("wb") as stderr:
        done = subprocess.run(command, cwd=ROOT, env=environment(sanitizer), check=False, stderr=stderr)
    return done.returncode == 0


def reports(sanitizer: Sanitizer) -> list[str]:
    """Return the reports; of leaks only those in which the extension module allocated."""
    found = []
    for file in sorted(sanitizer.reports.iterdir()):
        content = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".stderr":
            found += [report for report in set(UNDEFINED.findall(content)) if not is_suppressed(report)]
        elif "LeakSanitizer" in content:
            found += [part for part in content.split("\n\n") if re.match(r"\w+ leak of", part) and OURS in part]
        else:
            found.append(content)
    return found


def is_suppressed(report: str) -> bool:
    lines = (HERE / "undefined.supp").read_text(encoding="utf-8").splitlines()
    return any(re.search(line, report) for line in lines if line and not line.startswith("#"))


def run(command: Sequence[str]) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def text(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/sanitize.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sanitizer", choices=SANITIZERS)
    parser.add_argument("--only", nargs="+", choices=DRIVERS, help="drive it by these; default: by all")
    parser.add_argument("--no-build", action="store_true", help="use what was built before")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
