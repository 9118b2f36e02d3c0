"""Fuzz one target with coverage guidance: ``python -P -m tests.fuzz.run TARGET --seconds 3600``.

Targets in Python (`targets`) need ``pip install atheris``. Those of the compiled core (``answers``, ``gguf``,
``grammars``, ``pictures``, ``sounds``) need clang with its libFuzzer, as in Debian's ``clang-16`` and
``libclang-rt-16-dev``, and are built into ``build/fuzz`` with the address and undefined-behaviour sanitizers. Inputs
that reach new branches are added to ``build/fuzz/TARGET``; the corpus in the repository is read only. An input that
breaks something is written to ``build/fuzz`` and, with its fix, belongs into that corpus, where
``tests/unit/test_fuzz_corpus.py`` tries it from then on.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from tests.fuzz.json_mutator import JsonMutator

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "fuzz"
CORPUS = HERE / "corpus"
PYTHON = (*("blocks", "bodies", "items", "prefix_files"), *("presets", "schemas", "sessions", "templates", "utf8"))
FORMS = OUT / "forms"
CCACHE = ("ccache",) if shutil.which("ccache") else ()
GGML = "vendor/llama.cpp/ggml"
COMMON = "vendor/llama.cpp/common"
GGML_SOURCES = tuple(
    f"{GGML}/src/{name}"
    for name in (
        *("ggml.c", "ggml-alloc.c", "ggml-quants.c", "ggml.cpp", "ggml-backend.cpp", "ggml-backend-meta.cpp"),
        *("ggml-threading.cpp", "gguf.cpp"),
    )
)
# The sources of the compiled targets, beside their own.
NATIVE = {
    "gguf": (*GGML_SOURCES, "native/model/gguf_check.cpp", "native/model/gguf_keys.cpp"),
    "answers": (
        *(f"native/chat/{name}.cpp" for name in ("chat_form", "chat_parser", "chat_support")),
        *(f"native/chat/{name}.cpp" for name in ("peg_leaves", "peg_machine", "peg_program")),
        *(f"{COMMON}/{name}.cpp" for name in ("chat-peg-parser", "json", "json-schema", "peg-parser")),
        *(f"{COMMON}/{name}.cpp" for name in ("trie", "unicode")),
    ),
    "grammars": (
        *(f"native/grammar/{name}.cpp" for name in ("grammar", "grammar_check", "grammar_matcher", "grammar_stack")),
        "vendor/llama.cpp/src/llama-grammar.cpp",
    ),
    "pictures": ("native/media/image_file.cpp",),
    "sounds": ("native/media/sound_file.cpp",),
}
INCLUDE = (
    *("native", f"{GGML}/include", f"{GGML}/src", "vendor/llama.cpp/include", "vendor/llama.cpp/src", COMMON),
    *("vendor/llama.cpp", "vendor/llama.cpp/vendor", "vendor/llama.cpp/tools/mtmd"),
)
# Not enums: gguf reads a type into one before it looks whether there is such a type. Not null pointers as arguments:
# where a chunk of a file is empty, stb_image copies no bytes to no place.
SANITIZE = (
    *("-g", "-O1", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined"),
    "-fno-sanitize=enum,nonnull-attribute",
)


def build_native(target: str) -> Path:
    suffix = next((suffix for suffix in ("", "-19", "-16", "-14") if shutil.which(f"clang++{suffix}")), None)
    if suffix is None:
        raise SystemExit("fuzz: clang is missing; see CONTRIBUTING.md")
    objects = OUT / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    sources = [*NATIVE[target], f"tests/fuzz/native/{target}.cpp"]
    # What ggml's own build writes.
    (objects / "ggml-version.h").write_text('#define GGML_VERSION "0"\n#define GGML_COMMIT "0"\n')
    include = (f"-I{objects}", *(f"-I{folder}" for folder in INCLUDE))
    made = []
    for source in sources:
        compiler, standard = ("clang++", "-std=c++17") if source.endswith("cpp") else ("clang", "-std=c11")
        made.append(str(objects / (source.replace("/", "-") + ".o")))
        flags = (*SANITIZE, *include, "-D_GNU_SOURCE")
        command = [*CCACHE, compiler + suffix, standard, *flags, "-c", source, "-o", made[-1]]
        subprocess.run(command, cwd=ROOT, check=True)
    program = OUT / f"{target}-fuzzer"
    subprocess.run([f"clang++{suffix}", *SANITIZE, *made, "-o", str(program), "-lpthread"], check=True)
    return program


def libfuzzer_arguments(target: str, seconds: int) -> list[str]:
    found = OUT / target
    found.mkdir(parents=True, exist_ok=True)
    words = HERE / "native" / f"{target}.dict"
    dictionary = (f"-dict={words}",) if words.exists() else ()
    limits = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=65536"]
    said = ("-print_final_stats=1", f"-artifact_prefix={OUT}/{target}-")
    known = (str(CORPUS / target),) if (CORPUS / target).exists() else ()
    return [*limits, *dictionary, *said, str(found), *known]


def lay_out_plainly(target: str) -> None:
    """Have the package imported from a folder, as if it were not installed as editable.

    Atheris does not see the source of what the finder of an editable install imports, and counts none of its branches.
    """
    folder = OUT / "site" / target / "pyllmcancel"  # its own, since several may run at once
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    installed = Path(sysconfig.get_path("platlib"), "pyllmcancel")  # has the compiled module, and the pin
    sources = {path.name: path for path in (*installed.iterdir(), *(ROOT / "pyllmcancel").iterdir())}
    for name, path in sources.items():
        (folder / name).symlink_to(path)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")]
    sys.path[:0] = [str(folder.parent), str(ROOT)]


def fuzz_python(target: str, seconds: int) -> None:
    import atheris

    lay_out_plainly(target)
    # Everything below is compiled anew, with its branches counted.
    with atheris.instrument_imports(include=["pyllmcancel", "tests.fuzz", "jinja2"]):
        from tests.fuzz.targets import JSON_HEADS, TARGETS
    options: dict[str, Any] = {}
    if target in JSON_HEADS:
        corpus = [path.read_bytes() for path in (CORPUS / target).iterdir()]
        options["custom_mutator"] = JsonMutator(corpus, JSON_HEADS[target])
    atheris.Setup([sys.argv[0], *libfuzzer_arguments(target, seconds)], TARGETS[target], **options)
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
        if options.target == "answers":
            from tests.fuzz.answers import write_files

            write_files(FORMS, OUT / "answers")
            os.environ["PYLLMCANCEL_FORMS"] = str(FORMS)
        os.execv(program, [program, *libfuzzer_arguments(options.target, options.seconds)])


if __name__ == "__main__":
    main()
