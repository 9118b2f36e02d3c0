"""Run the tests of what computes, the native core and the races on it, against builds for other processors than this.

Which kernel of ggml computes what, and with it the last bits of every logit, depends on the processor: a test that
holds on one may fail on another. ``python tools/test_levels.py`` builds the package for x86-64 with AVX2 and without,
each into an environment of its own in ``build``, and runs ``tests/native`` and races of the compiled engine in each;
``python tools/test_levels.py --level x86-64-v2 -- tests/http`` runs other tests, or only one level, and
``-- -m '' tests/native`` the long ones, too.

Needs an environment that has the package and the tests' requirements, and lends them to the others. A level with the
kernels of the environment's own build is left out, unless it is named. Ends with the closing line and the exit status
of the first run that failed, or of the last. On processors other than x86-64 there is nothing to do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from other_build import ROOT, install

TESTS = (
    "tests/native",
    "tests/races/test_full_cache.py",
    "tests/races/test_real_engine.py",
    # Texts, grammars, files, limits of memory and sockets, and no computation: the same on every processor.
    *(
        f"--ignore=tests/native/test_{name}.py"
        for name in (
            *("chat_parser", "chat_template", "context_limits", "gguf_keys", "grammar_bounds", "guidance_models"),
            *("hang_up", "lazy_grammar", "loading", "long_words", "placement", "template_engine", "thread_policy"),
        )
    ),
    # The contract's tests have cases for the fake core, too.
    "-k",
    "not fake",
)
# The CPU features that a level needs, as far as ggml uses them.
LEVELS = {
    "x86-64-v3": frozenset({"avx", "avx2", "bmi2", "f16c", "fma"}),
    "x86-64-v2": frozenset({"sse4_2"}),
}
# In ggml's words, which kernels there are.
KERNELS = {"x86-64-v3": {"AVX", "AVX2", "F16C", "FMA"}, "x86-64-v2": set[str]()}
WHAT_IS_BUILT = """
import json, pyllmcancel._native as native
print(json.dumps([native.__file__, sorted(native.kernel_features())]))
"""


def runs_here(level: str) -> bool:
    if platform.machine() not in {"x86_64", "AMD64"}:
        return False
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    features = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return LEVELS[level].issubset(features)


def build(level: str) -> Path:
    """Install the package for `level`; returns the Python that has it.

    All levels share one directory of objects: only what is compiled otherwise is compiled again.
    """
    return install(level, "levels", f"--config-settings=cmake.define.PYLLMCANCEL_PORTABLE={level}")


def built(python: Path) -> tuple[Path, set[str]]:
    """Return the compiled core that `python` finds, and its kernels."""
    found = subprocess.run([python, "-P", "-c", WHAT_IS_BUILT], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    path, features = json.loads(found.stdout)
    return Path(path), {name for name in features if name.startswith(("AVX", "AMX", "F16C", "FMA"))}


def check(python: Path, level: str) -> None:
    """Check that `python` finds the build that was made for it, and for this level."""
    path, kernels = built(python)
    if not path.is_relative_to(python.parent.parent):
        raise SystemExit(f"test_levels: {python} finds {path}")
    if kernels != KERNELS[level]:
        raise SystemExit(f"test_levels: {path} was built with {', '.join(sorted(kernels)) or 'nothing'}")


def run_tests(python: Path, tests: list[str]) -> int:
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    return subprocess.run([python, "-m", "pytest", *tests], env=environment, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=LEVELS, action="append", help="only this one; may be given again")
    parser.add_argument("tests", nargs="*", default=TESTS, help="for pytest (default: TESTS in this file)")
    arguments = parser.parse_args()
    for level in arguments.level or LEVELS:
        if not runs_here(level):
            sys.stdout.write(f"{level}: not on this processor\n")
            continue
        if not arguments.level and built(Path(sys.executable))[1] == KERNELS[level]:
            sys.stdout.write(f"{level}: the kernels of this environment's own build, which its own tests run\n")
            continue
        sys.stdout.write(f"{level}: building\n")
        sys.stdout.flush()
        python = build(level)
        check(python, level)
        if status := run_tests(python, list(arguments.tests)):
            return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
