"""Fuzz one target with coverage guidance: ``python -m tests.fuzz.run TARGET --seconds 3600``.

Targets in Python (`targets`) need ``pip install atheris``; those of the compiled core (``gguf``) need clang with its
libFuzzer, as in Debian's ``clang-16`` and ``libclang-rt-16-dev``, and are built into ``build/fuzz`` with the address
and undefined-behaviour sanitizers. New findings are added to ``build/fuzz/TARGET``; the corpus in the repository is
read only. An input that breaks something is written to ``build/fuzz`` and, with its fix, belongs into that corpus,
where ``tests/unit/test_fuzz_corpus.py`` tries it from then on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "fuzz"
CORPUS = HERE / "corpus"
NATIVE = ("gguf",)
PYTHON = ("bodies", "grammars", "schemas", "sessions", "templates", "utf8")
GGML = "vendor/llama.cpp/ggml"
# Not enums: gguf reads a type into one before it looks whether there is such a type.
SANITIZE = (
    "-g",
    "-O1",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-sanitize=enum",
)


def build_native(target: str) -> Path:
    """Compile a target with clang; returns the program."""
    suffix = next((suffix for suffix in ("", "-19", "-16", "-14") if shutil.which(f"clang++{suffix}")), None)
    if suffix is None:
        raise SystemExit("fuzz: clang is missing; see CONTRIBUTING.md")
    objects = OUT / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    sources = [
        f"{GGML}/src/{name}"
        for name in (
            "ggml.c",
            "ggml-alloc.c",
            "ggml-quants.c",
            "ggml.cpp",
            "ggml-backend.cpp",
            "ggml-backend-meta.cpp",
            "ggml-threading.cpp",
            "gguf.cpp",
        )
    ]
    sources += ["native/model/gguf_check.cpp", "native/model/gguf_keys.cpp", f"tests/fuzz/native/{target}.cpp"]
    # What ggml's own build writes.
    (objects / "ggml-version.h").write_text('#define GGML_VERSION "0"\n#define GGML_COMMIT "0"\n')
    include = (f"-I{objects}", "-Inative", f"-I{GGML}/include", f"-I{GGML}/src", "-Ivendor/llama.cpp/include")
    made = []
    for source in sources:
        compiler, standard = ("clang++", "-std=c++17") if source.endswith("cpp") else ("clang", "-std=c11")
        made.append(str(objects / (source.replace("/", "-") + ".o")))
        command = [compiler + suffix, standard, *SANITIZE, *include, "-D_GNU_SOURCE", "-c", source, "-o", made[-1]]
        subprocess.run(command, cwd=ROOT, check=True)
    program = OUT / f"{target}-fuzzer"
    subprocess.run([f"clang++{suffix}", *SANITIZE, *made, "-o", str(program), "-lpthread"], check=True)
    return program


def libfuzzer_arguments(target: str, seconds: int) -> list[str]:
    found = OUT / target
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=65536"]
    return [*limits, "-print_final_stats=1", f"-artifact_prefix={OUT}/{target}-", str(found), str(CORPUS / target)]


def fuzz_python(target: str, seconds: int) -> None:
    import atheris

    # Everything below is compiled anew, with its branches counted.
    with atheris.instrument_imports(include=["pyllmcancel", "tests.fuzz.targets"]):
        from tests.fuzz.targets import TARGETS
    atheris.Setup([sys.argv[0], *libfuzzer_arguments(target, seconds)], TARGETS[target])
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=(*NATIVE, *PYTHON))
    parser.add_argument("--seconds", type=int, default=3600)
    options = parser.parse_args()
    if options.target in PYTHON:
        fuzz_python(options.target, options.seconds)
    else:
        program = str(build_native(options.target))
        os.execv(program, [program, *libfuzzer_arguments(options.target, options.seconds)])


if __name__ == "__main__":
    main()
