"""llama-server's command lines, as they are: each option of the pinned source is honoured, ignored or refused."""

import argparse
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.cli import llama_options, main, serve
from pyllmcancel.cli.environment import check_environment
from pyllmcancel.cli.llama_options import ANYWAY, IGNORED, REFUSED, SHORTCUTS, Foreign
from pyllmcancel.cli.model_argument import draft_model_to_fetch
from pyllmcancel.cli.parser import Parser
from pyllmcancel.errors import UsageError
from pyllmcancel.hub.fetching import HubModel
from pyllmcancel.hub.names import ModelName
from pyllmcancel.placement import Placement
from pyllmcancel.sampling import SAMPLER_LETTERS
from tests.http.test_serve_options import config_of
from tests.http.test_startup import serve_parser
from tests.support.llama_server_options import Option, options, sampler_letters

# How llama.cpp's fields of shortcuts are called here.
FIELDS = {
    "model.hf_repo": "hf_repo",
    "model.hf_file": "hf_file",
    "speculative.draft.mparams.hf_repo": "hf_repo_draft",
    "speculative.draft.mparams.hf_file": "model_draft",
    "port": "port",
    "n_ubatch": "ubatch_size",
    "n_batch": "batch_size",
    "n_parallel": "parallel",
    "n_ctx": "ctx_size",
    "embedding": "embeddings",
    "sampling.temp": "temp",
    "sampling.top_p": "top_p",
    "sampling.top_k": "top_k",
    "sampling.min_p": "min_p",
}
# Theirs alone: pieces of the middle of a prompt; a dump at the start.
NOT_OURS = ("n_cache_reuse", "verbose_prompt", "use_jinja")


def known() -> dict[str, argparse.Action]:
    (commands,) = (action for action in serve_parser()._actions if isinstance(action.choices, dict))
    found: dict[str, argparse.Action] = commands.choices["serve"]._option_string_actions  # type: ignore[index]
    return found


def parsed(*given: str) -> argparse.Namespace:
    return serve_parser().parse_args(["serve", *given])


def as_typed(*given: str) -> argparse.Namespace:
    """As the command takes them."""
    parser = Parser()
    serve.add_parser(parser.add_subparsers())
    return parser.parse_args(["serve", *given])


def names(rows: tuple[Foreign, ...]) -> list[Any]:
    return [pytest.param(name, arity, row.why, id=name) for row in rows for name, arity in row.arities()]


def values(name: str, arity: int) -> list[str]:
    return [name, *("1",) * arity]


def refused(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    try:
        status: object = main(list(given))
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    return capsys.readouterr().err


def test_every_option_of_llama_servers_is_known() -> None:
    theirs = {name for option in options() for name in (*option.names, *option.off)}
    assert theirs - known().keys() - {"--version"} == set()


def test_every_option_takes_as_many_values_as_theirs() -> None:
    ours = known()
    for option in options():
        for name in {*option.names, *option.off} & ours.keys() - {"-h", "--help", "--usage"}:
            taken = 1 if ours[name].nargs in (None, "?") else int(str(ours[name].nargs))
            assert taken == option.n_values, name


def test_no_option_is_ignored_that_llama_server_has_not() -> None:
    theirs = {name for option in options() for name in (*option.names, *option.off)}
    ours = {name for row in (*ANYWAY, *IGNORED, *REFUSED) for name, _ in row.arities()}
    assert ours - theirs == set()


@pytest.mark.parametrize(("name", "arity", "why"), names(IGNORED))
def test_what_does_nothing_says_why(caplog: pytest.LogCaptureFixture, name: str, arity: int, why: str) -> None:
    with caplog.at_level(logging.WARNING):
        llama_options.warn(parsed(*values(name, arity), *values(name, arity)))
    assert caplog.messages == [f"{name} is ignored: {why}"]


@pytest.mark.parametrize(("name", "arity", "why"), names(ANYWAY))
def test_what_is_so_in_any_case_is_taken_in_silence(name: str, arity: int, why: str) -> None:
    assert parsed(*values(name, arity)).ignored_options == ()
    assert why


@pytest.mark.parametrize(("name", "arity", "why"), names(REFUSED))
def test_what_changes_answers_is_refused(capsys: pytest.CaptureFixture[str], name: str, arity: int, why: str) -> None:
    assert f"{name}: {why}\n" in refused(capsys, "serve", *values(name, arity))


def shortcut(option: Option) -> dict[str, Any]:
    found: dict[str, Any] = {"hf_file": None}
    numbers: dict[str, float] = {}
    for field, text in re.findall(r"params\.([\w.]+)\s*=\s*(.*?);", option.code):
        if not field.startswith(NOT_OURS):
            value: Any = text.strip('"')
            if text == "true":
                value = True
            elif not text.startswith('"'):
                factors = [numbers.get(word.removeprefix("params."), word) for word in text.rstrip("f").split("*")]
                value = numbers[field] = float(factors[0]) * (float(factors[1]) if factors[1:] else 1)
            found[FIELDS[field]] = Path(value) if FIELDS[field] == "model_draft" else value
    return found


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_sets_what_llama_servers_does(name: str) -> None:
    (option,) = (option for option in options() if name in option.names)
    assert SHORTCUTS[name] == shortcut(option)


def test_every_shortcut_of_llama_servers_is_one_or_is_refused() -> None:
    theirs = {name for option in options() for name in option.names if 'hf_repo = "' in option.code}
    refused = {name for row in REFUSED for name, _ in row.arities()}
    assert theirs == SHORTCUTS.keys() | {name for name in refused if name.startswith("--vision")}


def test_what_follows_a_shortcut_changes_it() -> None:
    arguments = parsed("--fim-qwen-7b-spec", "--port", "9000", "-c", "4096")
    assert (arguments.port, arguments.ctx_size, arguments.batch_size) == (9000, 4096, 1024)
    assert arguments.hf_file == "qwen2.5-coder-7b-q8_0.gguf"
    assert arguments.hf_repo_draft == "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("-lm none", "mmap", False),
        ("-lm mmap+mlock", "mlock", True),
        ("--no-mmap --load-mode auto", "mmap", False),
        ("-np 3 -no-kvu", "kv_unified", False),
        ("--parallel -1", "parallel", 4),
        ("--threads -1 -tb -1", "threads_batch", 0),
        ("", "draft_sources", ("past", "prediction", "ngram", "model")),
        ("--spec-type draft-simple", "draft_sources", ("model",)),
        ("--spec-type draft-simple,ngram-mod", "draft_sources", ("ngram", "model")),
        ("--spec-type draft-mtp,ngram", "draft_sources", ("ngram", "heads")),
        ("--spec-draft-n-min 2", "draft_min", 2),
        ("--spec-draft-p-min 0.75", "draft_p_min", 0.75),
        ("-td 3", "draft_threads", 3),
        ("-td -1 -tbd 2", "draft_threads_batch", 2),
        ("-ctkd q8_0", "draft_cache_type_k", "q8_0"),
        ("--spec-draft-type-v bf16", "draft_cache_type_v", "bf16"),
        ("-ngld 5", "draft_placement", Placement(n_gpu_layers=5)),
        ("-ngl 7 -devd none --no-kv-offload", "draft_placement", Placement(devices=(), kv_offload=False)),
        ("-hfd user/model -md file.gguf", "draft_model", None),
        ("--spec-type none", "draft_sources", ()),
        ("--spec-type ngram-mod,none", "draft_sources", ()),
        ("--spec-type ngram-mod,ngram-cache", "draft_sources", ("ngram",)),
        ("--spec-type ngram-simple,past", "draft_sources", ("past", "ngram")),
        ("--spec-draft-n-max 64", "draft_max", 64),
        ("--draft 4", "draft_max", 4),
        ("--past-answers-mib 0", "past_answers_mib", 0),
        ("-fa enabled", "flash_attn", "on"),
        ("-fa 0", "flash_attn", "off"),
        ("-fa -1", "flash_attn", "auto"),
        ("--gpt-oss-20b-default", "alias", "ggml-org/gpt-oss-20b-GGUF"),
        ("--gpt-oss-20b-default -a mine", "alias", "mine"),
    ],
)
def test_their_spellings_reach_the_engine(given: str, name: str, value: Any) -> None:
    assert getattr(config_of(*given.split()).engine, name) == value


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--spec-type draft-eagle3", "is not supported: such a model reads the hidden states of several layers"),
        ("--spec-type ngram-mod,draft-eagle3", "draft-eagle3 is not supported"),
        ("--spec-type ngram-mode", "must be some of none, past, prediction, ngram, model, heads, ngram-simple"),
        ("--spec-type=", "must be some of none, past"),
        ("--offline -md missing.gguf", "there is no file missing.gguf"),
        ("--offline -hfd name", "--hf-repo-draft must be USER/MODEL or USER/MODEL:QUANT, not 'name'"),
        *((f"--draft-p-min {given}", "--draft-p-min") for given in ("1.5", "-0.1", "half")),
    ],
)
def test_drafts_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str], given: str, why: str) -> None:
    assert why in refused(capsys, "serve", *given.split())


def test_a_draft_model_is_fetched_from_the_hub() -> None:
    model = draft_model_to_fetch(parsed("-hfd", "user/model:Q8_0", "-hft", "secret", "--offline"))
    assert model == HubModel(ModelName("user/model", "Q8_0"), "secret", offline=True)
    model = draft_model_to_fetch(parsed("-hfd", "user/model", "-md", "model.gguf"))
    assert model == HubModel(ModelName("user/model", "", "model.gguf"), None)
    assert draft_model_to_fetch(parsed("-md", "model.gguf")) is None


def test_their_spellings_reach_the_server() -> None:
    assert config_of("--no-webui").ui is False
    assert config_of("--sampler-seq", "kpt").sampling.samplers == ("top_k", "top_p", "temperature")
    assert config_of("--gpt-oss-20b-default").sampling.top_k == 0


@pytest.mark.parametrize(
    ("given", "level"),
    [("", "info"), ("-v", "debug"), ("-lv 2", "warning"), ("-lv 9", "debug"), ("--log-disable", "error")],
)
def test_their_verbosity_is_a_level_of_the_log(given: str, level: str) -> None:
    assert parsed(*given.split()).log_level == level


@pytest.mark.parametrize("option", ["-v", "--verbose", "--log-verbose"])
def test_a_verbose_server_logs_all_and_its_answers_tell_more(option: str) -> None:
    assert (parsed(option).log_level, config_of(option).verbose, config_of().verbose) == ("debug", True, False)


def test_samplers_have_their_letters() -> None:
    # Of what they have and we do not, adaptive-p, the options are refused.
    assert {letter: name for letter, name in sampler_letters().items() if name != "adaptive_p"} == SAMPLER_LETTERS


@pytest.mark.parametrize("given", ["--ctx_size 512", "--ctx_size=512", "--ctx-size 512"])
def test_a_name_may_have_underscores(given: str) -> None:
    assert as_typed(*given.split()).ctx_size == 512


def test_values_are_taken_as_they_are() -> None:
    assert as_typed("--chat_template={{ a_b }}").chat_template == "{{ a_b }}"
    assert as_typed("--alias", "a_b").alias == "a_b"


@pytest.mark.parametrize(
    ("given", "suggested"),
    [
        ("serve --paralel 4", "--parallel"),
        ("serve --cxt_size=4", "--ctx-size"),
        ("serve --no-metric", "--no-metrics"),
        ("srve", "serve"),
        ("bench canc", "cancel"),
        ("bench cancel --concurency 4", "--concurrency"),
        ("serve --flash-atn on --hots x", "--flash-attn?; did you mean --host"),
    ],
)
def test_what_is_not_known_suggests_the_nearest(capsys: pytest.CaptureFixture[str], given: str, suggested: str) -> None:
    message = refused(capsys, *given.split())
    assert f"; did you mean {suggested}?\n" in message
    assert len(message.splitlines()) == 1


def test_what_is_like_nothing_suggests_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "serve", "--xyzzy", "extra")
    assert "unrecognized arguments: --xyzzy (see pyllmcancel serve --help)\n" in said


def test_their_variables_are_told_with_ours(caplog: pytest.LogCaptureFixture) -> None:
    """The variable that is named for an honoured option is one that is read."""
    ours = known()
    foreign = {name for row in (*ANYWAY, *IGNORED, *REFUSED) for name, _ in row.arities()}
    told = {option.variable for option in options() if option.variable.startswith("LLAMA_ARG_")}
    locks = {name for name in told if "KEY_FILE" in name or "CERT_FILE" in name}
    with caplog.at_level(logging.WARNING):
        check_environment(parsed(), dict.fromkeys(told - locks, "1") | {"HF_TOKEN": "x", "LLAMA_CACHE": "x"})
    lines = {line.split()[0]: line for line in caplog.messages}
    assert lines.keys() == told - locks
    for option in options():
        first = next((name for name in option.names if name in ours and name not in foreign), None)
        if option.variable in lines and first is not None and ours[first].help != argparse.SUPPRESS:
            name = ours[first].option_strings[0].removeprefix("--").upper().replace("-", "_")
            assert lines[option.variable].endswith(f": set PYLLMCANCEL_{name}")


@pytest.mark.parametrize(
    ("variable", "option"),
    [
        ("LLAMA_API_KEY", "--api-key"),
        ("LLAMA_ARG_API_KEY_FILE", "--api-key-file"),
        ("LLAMA_ARG_SSL_KEY_FILE", "--ssl-key-file"),
    ],
)
def test_a_server_that_was_to_be_locked_does_not_start_open(variable: str, option: str) -> None:
    ours = "PYLLMCANCEL_" + option.removeprefix("--").upper().replace("-", "_")
    with pytest.raises(UsageError, match=f"{variable} is set, but not read here: set {ours}, or unset it"):
        check_environment(parsed(), {variable: "x"})
    check_environment(parsed(option, "x"), {variable: "x"})
