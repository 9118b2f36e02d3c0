"""The meaning of ``serve``'s options: the configuration that they make."""

from argparse import Action, ArgumentError
from dataclasses import fields
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.chat.template import CHATML
from pyllmcancel.cli import main
from pyllmcancel.cli.configuration import server_config
from pyllmcancel.cli.keys import certificate_of
from pyllmcancel.config import EngineConfig
from pyllmcancel.errors import UsageError
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.config import ApiKey, ServerConfig
from pyllmcancel.server.limits import Limits
from tests.http.test_startup import serve_actions, serve_parser


def config_of(*options: str) -> ServerConfig:
    return server_config(serve_parser().parse_args(["serve", *options]))


# Of the options that are called as a field of the configuration is: the place of the field.
PLACES = {
    field.name: part + field.name
    for part, kind in (
        ("sampling.", SamplingParams),
        ("limits.", Limits),
        ("engine.", EngineConfig),
        ("", ServerConfig),
    )
    for field in fields(kind)
}
# Each of these options takes one of these values, or none. The others name files, or have values of their own kind.
VALUES = ("7", "0.5", "2", "mean", "q8_0", "user", "refuse")
APART = {"model", "lora", "mmproj", "chat_template", "samplers", "slot_save_path", "worker_key", "trusted_proxies"}
APART |= {"cors_origins"}
CALLED_SO = [action for action in serve_actions() if action.dest in PLACES and action.dest not in APART]


@pytest.mark.parametrize("action", CALLED_SO, ids=lambda action: action.dest)
def test_an_option_reaches_the_field_of_its_name_by_each_of_its_names(
    action: Action, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, parser = attrgetter(PLACES[action.dest]), serve_parser()
    values = [()] if action.nargs in (0, "?") else [(value,) for value in VALUES]
    found = {}
    for given in product(action.option_strings, *zip(*values, strict=True)):
        try:
            arguments = parser.parse_args(["serve", *given])
            found[given] = read(server_config(arguments))
        except (SystemExit, ArgumentError, UsageError):
            continue
        assert found[given] == getattr(arguments, action.dest)
    assert {name for name, *_ in found} == set(action.option_strings)
    # From the environment, too; and the command line wins.
    text, expected = next((given[1:], one) for given, one in found.items() if one != read(config_of()))
    variable = action.option_strings[0].removeprefix("--").upper().replace("-", "_")
    monkeypatch.setenv(f"PYLLMCANCEL_{variable}", text[0] if text else {False: "off"}.get(expected, "on"))
    assert read(config_of()) == expected
    other = next((given for given, one in found.items() if one != expected), None)
    assert other is None or read(config_of(*other)) == found[other]


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ("", "engine.parallel", 4),
        ("", "engine.kv_unified", None),
        ("-np 1", "engine.kv_unified", None),
        ("-np 2", "engine.kv_unified", False),
        ("-np 2 -kvu", "engine.kv_unified", True),
        ("-fa off", "engine.flash_attn", "off"),
        ("--reranking", "engine.pooling", "rank"),
        ("--rerank --pooling rank", "engine.pooling", "rank"),
        ("", "engine.steps_ahead", None),
        ("--tags chat,small", "tags", ("chat", "small")),
        ("--n-predict -1", "n_predict", None),
        ("--predict 0", "n_predict", 0),
        ("--seed -1", "seed", None),
        ("--sse-ping-interval 0", "sse_ping_interval", 0.0),
        ("--sse-ping-interval -1", "sse_ping_interval", 0.0),
        ("--cors-origins http://a,http://b", "cors_origins", ("http://a", "http://b")),
        ("--cors-origins HTTPS://Page.example/", "cors_origins", ("https://page.example",)),
        ("--cors-origins *,null,localhost", "cors_origins", ("*", "null", "localhost")),
        ("--cors-origins file://,app://*", "cors_origins", ("file://", "app://*")),
        ("--cors-origins chrome-extension://abc", "cors_origins", ("chrome-extension://abc",)),
        ("--host 127.0.0.1,my-box.lan", "bound_to", ("127.0.0.1", "my-box.lan")),
        ("--allowed-hosts chat.example,*.lan", "allowed_hosts", ("chat.example", "*.lan")),
        ("--allowed-hosts *", "allowed_hosts", ("*",)),
        ("--allowed-hosts ::1,böx.example", "allowed_hosts", ("::1", "xn--bx-fka.example")),
        ("--trusted-proxies 127.0.0.1,10.0.0.0/24", "trusted_proxies", ("127.0.0.1", "10.0.0.0/24")),
        ("--chat-template chatml", "chat_template", CHATML),
        ("--chat-template {{x}}", "chat_template", "{{x}}"),
        ("--max-body-mib 2", "limits.max_body", 2 << 20),
        ("--max-bodies-mib 16", "limits.max_bodies", 16 << 20),
        ("--max-bodies-mib 1", "limits.max_bodies", 8 << 20),  # one body must fit
        ("--client-timeout 0", "limits.client_timeout", 0.0),
        ("--reader-stall 0", "limits.reader_stall", 0.0),
        ("--temperature 0.5", "sampling.temperature", 0.5),
        ("--repeat-last-n 8", "sampling.penalty_last_n", 8),
        ("--frequency-penalty -0.5", "sampling.frequency_penalty", -0.5),
        ("--dynatemp-exp 2", "sampling.dynatemp_exponent", 2.0),
        ("--mirostat-lr 0.2", "sampling.mirostat_eta", 0.2),
        ("--mirostat-ent 4", "sampling.mirostat_tau", 4.0),
        ("--samplers top_k;temperature", "sampling.samplers", ("top_k", "temperature")),
    ],
)
def test_options_reach_the_configuration(options: str, name: str, value: Any) -> None:
    assert attrgetter(name)(config_of(*options.split())) == value


def test_each_port_has_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYLLMCANCEL_STORE", raising=False)
    paths = [config_of("--port", port).storage for port in ("8000", "8001")]
    assert [one and one.path and one.path.name for one in paths] == ["responses-8000.db", "responses-8001.db"]


@pytest.mark.parametrize(
    ("options", "expected"), [("", 512), ("-b 256", 256), ("-ub 1024", 1024), ("-ub 4096", 2048), ("-b 64 -ub 128", 64)]
)
def test_a_step_is_one_ubatch_and_at_most_one_batch(options: str, expected: int) -> None:
    assert config_of(*options.split()).engine.step_tokens() == expected


def test_adapters_add_up_in_their_order_with_their_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "adapter.gguf"
    adapter.write_bytes(b"GGUF")
    one, scaled = (adapter, 1.0), (adapter, 0.5)
    assert config_of("--lora", str(adapter)).engine.lora == (one,)
    assert config_of("--lora", str(adapter), "--lora", f"{adapter},{adapter}").engine.lora == (one, one, one)
    assert config_of("--lora", str(adapter), "--lora-scaled", f"{adapter}:0.5").engine.lora == (one, scaled)
    monkeypatch.setenv("PYLLMCANCEL_LORA", f"{adapter},{adapter}")
    assert config_of().engine.lora == (one, one)
    assert config_of("--lora", str(adapter)).engine.lora == (one,), "the command line wins"
    assert not config_of().engine.lora_init_without_apply
    assert config_of("--lora-init-without-apply").engine.lora_init_without_apply


def test_keys_come_from_the_option_and_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# of the team\n\n third \nann: fourth:with-a-colon\nann:fifth\n", "utf-8")
    config = config_of("--api-key", "first, second", "--api-key-file", str(path), "--admin-api-key", "root")
    unnamed = [ApiKey.unnamed(key) for key in ("first", "second", "third")]
    assert config.api_keys == (*unnamed, ApiKey("ann", "fourth:with-a-colon"), ApiKey("ann", "fifth"))
    assert len({key.owner for key in unnamed}) == 3
    assert config.admin_api_keys == ("root",)
    assert config.shared
    assert config_of("--api-key", "one", "--admin-api-key", "root").shared, "an administrator is an owner apart"
    assert not config_of("--api-key", "one").shared
    with pytest.raises(UsageError, match="--admin-api-key"):
        config_of("--api-key", "one,same", "--admin-api-key", "root,same")
    with pytest.raises(UsageError, match="--api-key is not UTF-8"):
        config_of("--api-key", "\udcff")


@pytest.mark.parametrize("lines", ["  # a comment\nann:first\n", "\ufeffann:first\n", "\t#\n\n\x0bann:first\r\n"])
def test_comments_and_marks_in_a_file_of_keys_open_nothing(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "keys"
    path.write_text(lines, "utf-8")
    assert config_of("--api-key-file", str(path)).api_keys == (ApiKey("ann", "first"),)


@pytest.mark.parametrize(
    "lines",
    [b"# nothing\n", b"ann:\n", b":key\n", b"an owner:key\n", b"ann:same\nbob:same\n", b"admin:key\n", b"\xffkey\n"],
)
def test_a_file_of_keys_that_says_nothing_clear_is_refused(tmp_path: Path, lines: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(lines)
    with pytest.raises(UsageError, match="key"):
        config_of("--api-key-file", str(path))


def test_files_that_are_no_certificate_are_refused_and_without_files_there_is_none() -> None:
    arguments = serve_parser().parse_args(["serve", "--ssl-key-file", __file__, "--ssl-cert-file", __file__])
    with pytest.raises(UsageError, match="are not PEM files of a private key and its"):
        certificate_of(arguments)
    assert certificate_of(serve_parser().parse_args(["serve"])) is None


def test_a_template_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{{ messages }}", "utf-8")
    assert config_of("--chat-template-file", str(path)).chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ("--lora /nowhere/adapter.gguf", "/nowhere/adapter.gguf"),
        ("--model /nowhere/model.gguf", "/nowhere/model.gguf"),
        ("--api-key-file /nowhere/keys", "/nowhere/keys"),
        ("--chat-template-file /nowhere/template", "/nowhere/template"),
        ("--chat-template lama3", "is it llama3?"),
        ("--chat-template {{x}} --chat-template-file x", "exclude each other"),
        ("-m smolm2", "there is no file smolm2, and no model of that name; did you mean smollm2?"),
        ("-m entirely-different", "and no model of that name; known are smollm2, stdlib-coder"),
        ("--hf-file x.gguf", "--hf-file names a file of --hf-repo"),
        ("--samplers top_k;top_z", "top_z"),
        ("--repeat-penalty 0", "--repeat-penalty must"),
        ("--mirostat 3", "--mirostat must"),
        ("--repeat-last-n -2", "--repeat-last-n must"),
        ("--ssl-key-file key.pem", "must be given together"),
        ("--ssl-key-file /nowhere/key --ssl-cert-file /nowhere/certificate", "/nowhere/key"),
    ],
)
def test_what_cannot_be_meant_ends_with_a_message(capsys: pytest.CaptureFixture[str], options: str, part: str) -> None:
    assert main(["serve", *options.split()]) == 2
    message = capsys.readouterr().err
    assert part in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "options",
    [
        *(f"--lora-scaled {value}" for value in ("adapter.gguf", "adapter.gguf:x")),
        *("-ngl many", "--n-predict -2", "-ub 0", "--ubatch 4"),
        *(f"--client-timeout {value}" for value in ("1", "40000", "-2")),
        *(f"--cors-origins {value}" for value in ("page.example", "https://a.example/path", "https://user@a.example")),
        *(f"--allowed-hosts {value}" for value in ("http://chat.example", "chat.example:8000", "chat.*")),
    ],
)
def test_what_cannot_be_read_is_argparses_to_refuse(capsys: pytest.CaptureFixture[str], options: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *options.split()])
    assert ended.value.code == 2
    assert options.split(maxsplit=1)[0] in capsys.readouterr().err
