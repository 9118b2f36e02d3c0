"""The help of ``serve``: what matters first, all of it, and one group."""

import argparse

import pytest

from pyllmcancel.cli import main
from pyllmcancel.cli.help import FIRST
from pyllmcancel.cli.serve_options import GROUPS
from tests.http.test_startup import serve_actions
from tests.support.marks import mostly_long

MAX_LINES = 60


def shown(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["serve", *given])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("option", ["--help", "-h", "--usage"])
def test_the_help_has_the_first_options_and_names_the_groups(capsys: pytest.CaptureFixture[str], option: str) -> None:
    text = shown(capsys, option)
    assert len(text.splitlines()) <= MAX_LINES
    for name in (*FIRST, "help", "help-all"):
        assert f"--{name} " in text
    for group in (*GROUPS, "shortcuts"):
        assert f"\n  {group} " in text
    assert "--mirostat" not in text


def test_the_help_does_not_show_a_key_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYLLMCANCEL_API_KEY", "secret")
    monkeypatch.setenv("PYLLMCANCEL_PORT", "1")
    text = shown(capsys, "--help")
    assert "secret" not in text
    assert "[8000]" in text, "the default is shown as it is without the environment"


def test_the_groups_have_all_options_together(capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(shown(capsys, "--help", group) for group in GROUPS)
    assert [action.option_strings[0] for action in serve_actions() if action.option_strings[0] not in text] == []


def test_an_unknown_group_is_an_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help", "worker"])
    assert ended.value.code == 2
    assert "did you mean workers?" in capsys.readouterr().err


WITH_VALUES = {
    one.option_strings[0]: getattr(one.type, "__qualname__", None)
    for one in serve_actions()
    if not isinstance(one, argparse.BooleanOptionalAction) and one.nargs != 0
}
FEW = {kind: option for option, kind in WITH_VALUES.items()}  # one option of each type: others differ in their bounds


@pytest.mark.parametrize("option", mostly_long(WITH_VALUES, *FEW.values()))
def test_nonsense_is_reported_in_one_line_of_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    def listen(*_: object) -> None:
        raise OSError(0, "this value makes sense")

    monkeypatch.setattr("pyllmcancel.cli.opening.listen", listen)
    for nonsense in ("nonsense", "", "-5", "9" * 20, "nan", "1e400", "/", __file__, "[1"):
        try:
            status: object = main(["serve", f"{option}={nonsense}"])
        except SystemExit as ended:
            status = ended.code
        text = capsys.readouterr().err
        assert status == 2 or (status, text) == (1, "pyllmcancel: this value makes sense\n")
        assert text.count("\n") == 1
        assert "invalid" not in text
        assert "Errno" not in text
