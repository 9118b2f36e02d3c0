"""The chat: answers are stopped, given anew and kept; and whatever an answer says, it is shown and does nothing."""

import json
import re
from pathlib import Path

import pytest

from tests.browser.chromium import Locator, Page, Route, Tab, expect
from tests.browser.scenes import CHATS, answer_with, choose, exchange, file, say, sent_by
from tests.support.http_process import ServerProcess

STOPPED = re.compile(r"Cancelled explicitly by you · compute stopped after [\d.]+ (ms|s)")


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab.open("chat")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def stop_when_it_answers(page: Page) -> None:
    wait_for_text(page)
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("article[aria-busy=true]")).to_have_count(0)


def test_an_answer_is_stopped_and_shown_as_cut(page: Page, server: ServerProcess) -> None:
    request_id = begin_to_answer(page)
    stop_when_it_answers(page)
    expect(answers(page)).to_contain_text(STOPPED)
    expect(page.get_by_role("textbox", name="Message")).to_be_focused()
    assert server.wait_for(request_id, status="cancelled")["cancel_reason"] == "explicit"


@pytest.mark.long
def test_the_speed_is_shown_while_an_answer_is_written_and_after_it(page: Page) -> None:
    ask_for_a_story(page)
    figures = answers(page).locator(".answer-figures")
    expect(page.locator("article[aria-busy=true] .answer-figures")).to_have_text(
        re.compile(r"[\d,]+ tokens ?[\d.,]+ tokens/s$")
    )
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text(STOPPED)
    expect(figures).to_contain_text(re.compile(r"[\d,]+ tokens ?[\d.,]+ tokens/s"))


def test_an_answer_goes_on_after_a_reload_and_can_be_stopped(page: Page, server: ServerProcess) -> None:
    request_id = begin_to_answer(page)
    page.reload()
    wait_for_text(page)
    server.wait_for(request_id, readers=1)  # the page that is gone may have left later
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text(STOPPED)
    assert server.wait_for(request_id, status="cancelled")["cancel_reason"] == "explicit"


@pytest.mark.long
def test_an_answer_that_ended_while_its_page_was_away_is_shown_with_its_end(page: Page, server: ServerProcess) -> None:
    request_id = begin_to_answer(page)
    elsewhere = page.url
    page.goto("about:blank")
    server.cancel(request_id)
    page.goto(elsewhere)
    expect(answers(page)).to_contain_text("Cancelled explicitly elsewhere")
    expect(answers(page)).to_contain_text(re.compile(r"\w{3}"))


@pytest.mark.long
def test_enter_while_an_answer_is_written_says_what_stops_it_and_keeps_the_message(page: Page) -> None:
    begin_to_answer(page)
    say(page, "And then?")
    refusal = page.get_by_role("alert")
    expect(refusal).to_contain_text("The answer is still being written")
    expect(page.get_by_role("textbox", name="Message")).to_have_value("And then?")
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text(STOPPED)
    expect(refusal).to_have_count(0)


@pytest.mark.long
def test_the_context_fills_while_an_answer_is_written(page: Page) -> None:
    begin_to_answer(page)
    used = page.locator(".composer .context")
    expect(used).not_to_have_text(used.inner_text())
    expect(page.locator("article[aria-busy=true]")).to_have_count(1)
    stop_when_it_answers(page)
    meter = page.get_by_role("img", name="The conversation takes")
    expect(meter).to_have_text(re.compile(r"^\s*[\d,]+ / [\d,]{5,}$"))


@pytest.mark.long
def test_a_model_without_a_chat_template_says_so(tab: Tab) -> None:
    def without_template(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"chats": False})

    tab.page.route("**/props", without_template)
    page = tab.open("chat")
    note = page.locator(".composer").get_by_text("no chat template")
    expect(note).to_be_visible()
    note.get_by_role("link").click()
    expect(page.get_by_role("region", name="Completion", exact=True)).to_be_visible()


@pytest.mark.long
def test_an_answer_that_is_continued_goes_on_inside_its_code(page: Page) -> None:
    exchange(page, "Show me code", "```python\ndef read(pa", finish="length")
    expect(answers(page).locator("pre")).to_have_text("def read(pa")
    answer_with(page, "th):\n    pass\n```\n\nThat is *all*.")
    answers(page).get_by_role("button", name="Continue", exact=True).click()
    expect(answers(page).locator("pre")).to_have_text("def read(path):\n    pass")
    expect(answers(page).locator("em")).to_have_text("all")
    expect(answers(page).locator(".md-block")).to_have_count(2)


def wait_for_text(page: Page) -> None:
    """Wait until the running answer has text: before, it has a line that says what it waits for."""
    expect(page.locator("article[aria-busy=true]:not(:has(.waiting-line))")).to_contain_text(re.compile(r"\w{3}"))


def ask_for_a_story(page: Page) -> None:
    """Ask for an answer that does not end by itself: the small model's would be cut after two seconds of repetition."""

    def ask(route: Route) -> None:
        route.continue_(post_data=json.dumps(route.request.post_data_json | {"repetition_limit": 0}))

    page.route(CHATS, ask)
    say(page, "Tell me a long story")


def begin_to_answer(page: Page) -> str:
    """Ask for a long answer, and return its request's id once it has begun."""
    with page.expect_request(CHATS) as sent:
        ask_for_a_story(page)
    wait_for_text(page)
    return str(sent.value.headers["x-request-id"])


@pytest.mark.long
def test_an_answer_that_the_api_cancels_is_not_said_to_be_stopped_by_you(page: Page, server: ServerProcess) -> None:
    server.cancel(begin_to_answer(page))
    expect(answers(page)).to_contain_text(
        re.compile(r"Cancelled explicitly elsewhere: by the API, or from .* · compute stopped after [\d.]+ (ms|s)")
    )
    expect(answers(page).get_by_role("button", name="Continue", exact=True)).to_be_visible()


@pytest.mark.long
def test_an_answer_that_is_cancelled_in_the_engine_view_says_so(page: Page) -> None:
    request_id = begin_to_answer(page)
    page.get_by_role("link", name="Engine", exact=True).click()
    page.get_by_role("button", name=f"cancel request {request_id}", exact=True).click()
    page.get_by_role("link", name="Chat", exact=True).click()
    expect(answers(page)).to_contain_text(
        re.compile(r"Cancelled explicitly by you, in the view Engine · compute stopped after [\d.]+ (ms|s)")
    )


@pytest.mark.long
def test_typed_markdown_is_rendered_and_typed_markup_is_text(page: Page) -> None:
    exchange(page, "Is **this**\n  <b>it</b>?\n\n```python\ndef f(): pass\n```", "An answer.")
    mine = page.get_by_role("article", name="You")
    expect(mine.locator("strong")).to_have_text("this")
    expect(mine.locator("p")).to_have_text("Is this\n  <b>it</b>?", use_inner_text=True)
    expect(mine.get_by_role("button", name="Copy the python")).to_be_visible()


@pytest.mark.long
def test_an_answer_is_given_again_beside_the_first(page: Page) -> None:
    exchange(page, "Which is this?", "The first answer.")
    expect(answers(page)).to_contain_text("The first answer.")
    answer_with(page, "The second answer.")
    answers(page).get_by_role("button", name="Answer again").click()
    expect(answers(page)).to_contain_text("The second answer.")
    expect(answers(page).get_by_label("Version 2 of 2")).to_be_visible()
    answers(page).get_by_role("button", name="Previous version").click()
    expect(answers(page)).to_contain_text("The first answer.")


@pytest.mark.long
def test_a_question_is_edited_and_the_old_one_stays_as_a_version(page: Page) -> None:
    exchange(page, "What is a tree", "An answer.")
    expect(answers(page)).to_contain_text("An answer.")
    mine = page.get_by_role("article", name="You")
    mine.get_by_role("button", name="Edit, and continue from here").click()
    mine.get_by_role("textbox").fill("What is a graph")
    with page.expect_request("**/v1/chat/completions") as sent:
        mine.get_by_role("textbox").press("Enter")
    assert [turn["content"] for turn in sent.value.post_data_json["messages"]] == ["What is a graph"]
    expect(mine).to_contain_text("What is a graph")
    mine.get_by_role("button", name="Previous version").click()
    expect(mine).to_contain_text("What is a tree")


HOSTILE = """# <img src="http://127.0.0.1:9/a.png" onerror="globalThis.ran = 1">

<script>globalThis.ran = 2</script><script src="http://127.0.0.1:9/b.js"></script>
<style>body { display: none }</style><link rel="stylesheet" href="http://127.0.0.1:9/c.css">
<form action="http://127.0.0.1:9/d"><input name="key"><button>Sign in</button></form>
<iframe src="http://127.0.0.1:9/e"></iframe><object data="http://127.0.0.1:9/f"></object>
<svg onload="globalThis.ran = 3"><a xlink:href="javascript:globalThis.ran = 4">svg</a></svg>
<a href="#" id="app" name="model" style="position: fixed; inset: 0" onclick="globalThis.ran = 5">over all</a>
<details open ontoggle="globalThis.ran = 6"><summary>sum</summary></details>
<base href="http://127.0.0.1:9/"><meta http-equiv="refresh" content="0;url=http://127.0.0.1:9/g">

[one](javascript:globalThis.ran=7) [two](data:text/html,<script>globalThis.ran=8</script>) [three](//127.0.0.1:9/h)
[four](JaVaScRiPt&colon;globalThis.ran=9) <javascript:globalThis.ran=10> [five](vbscript:ran) [six](file:///etc/passwd)

![remote](http://127.0.0.1:9/i.png) ![](https://127.0.0.1:9/j.svg "t") ![svg](data:image/svg+xml;base64,PHN2Zy8+)

```html"><img src=x onerror=globalThis.ran=11>
<img src="http://127.0.0.1:9/k.png" onerror="globalThis.ran = 12">
```

$\\href{javascript:globalThis.ran=20}{x}$ $\\includegraphics{http://127.0.0.1:9/l.png}$
$\\style{color:red}{y} \\color{red} z$ $\\def\\a{\\a\\a}\\a$ $\\text{<img src=x onerror=globalThis.ran=21>}$
$\\rule{9999em}{9999em}$ $\\html{<svg onload=1>}{x}$

| <img src=x onerror=globalThis.ran=13> | b |
|---|---|
| <svg><script>globalThis.ran=14</script></svg> | [c](javascript:globalThis.ran=15) |

The end of the answer.
"""
# What an answer may be made of, whatever it says.
SUSPICIOUS = """() => [...document.querySelectorAll("article.assistant .md *")].filter((element) =>
  element.matches("script, style, link, form, iframe, object, embed, base, meta, input, video, audio, svg")
  || (element.tagName === "IMG" && !element.src.startsWith("data:image/png"))
  || (element.hasAttribute("href") && !/^https?:|^mailto:/.test(element.href ?? ""))
  || [...element.attributes].some(({ name }) => name.startsWith("on") || name === "style" || name === "name")
).map((element) => element.outerHTML)"""


def test_whatever_an_answer_says_nothing_runs_and_no_other_host_is_asked(page: Page) -> None:
    exchange(page, "<img src=x onerror=globalThis.ran=16>", HOSTILE, reasoning_content=HOSTILE)
    expect(answers(page).get_by_text("The end of the answer.").last).to_be_visible()
    expect(page.locator("article[aria-busy=true]")).to_have_count(0)
    answers(page).locator("summary").first.click()  # the reasoning
    expect(page.get_by_role("article", name="You")).to_contain_text("<img src=x onerror=globalThis.ran=16>")
    expect(answers(page).locator("math").first).to_be_attached()
    assert page.evaluate(SUSPICIOUS) == []
    page.reload()  # what was kept is as hostile as what came
    expect(answers(page).get_by_text("The end of the answer.").last).to_be_visible()
    expect(answers(page).locator("math").first).to_be_attached()
    assert page.evaluate(SUSPICIOUS) == []
    assert page.evaluate("globalThis.ran === undefined")


def test_conversations_outlive_a_reload_and_are_exported(page: Page, tmp_path: Path) -> None:
    exchange(page, "Is this kept?", "It **is** kept.")
    expect(answers(page).get_by_text("is", exact=True)).to_be_visible()
    expect(page.locator("article[aria-busy=true]")).to_have_count(0)
    history = page.get_by_role("navigation", name="Conversations")
    expect(history.get_by_role("button", name="Is this kept?", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_role("article", name="You")).to_contain_text("Is this kept?")
    expect(answers(page)).to_contain_text("It is kept.")
    text = exported(page, "Export as Markdown", tmp_path / "chat.md")
    assert text == "# Is this kept?\n\n## You\n\nIs this kept?\n\n## Assistant\n\nIt **is** kept.\n"
    (conversation,) = json.loads(exported(page, "Export as JSON", tmp_path / "chat.json"))["conversations"]
    assert [one["content"] for one in conversation["messages"]] == ["Is this kept?", "It **is** kept."]


def exported(page: Page, entry: str, path: Path) -> str:
    page.get_by_role("navigation", name="Conversations").get_by_role("button", name="Actions on “").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name=entry).click()
    download.value.save_as(path)
    return path.read_text()


FORMULAS = r"""The mass is $E = mc^2$, \(\sqrt{x_1}\), and it costs $5 or $10, not $\frac{$.

$$
\sum_{i=1}^n i = \frac{n(n+1)}{2}, \qquad \overline{x} \ne \begin{pmatrix}1 & 2\\ 3 & 4\end{pmatrix}
$$

\[ f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases} \]
"""


@pytest.mark.long
def test_formulas_are_drawn_and_what_is_none_is_text(page: Page) -> None:
    exchange(page, "What of $a_1$?", FORMULAS)
    expect(answers(page).locator("math")).to_have_count(4)
    expect(answers(page).locator("math mfrac")).to_have_count(1)
    expect(answers(page).locator("p").first).to_contain_text("it costs $5 or $10")
    expect(answers(page).locator("code")).to_have_text(r"\frac{")
    expect(page.get_by_role("article", name="You").locator("math")).to_have_count(1)
    assert page.evaluate(SUSPICIOUS) == []


@pytest.mark.long
def test_an_answer_is_downloaded(page: Page, tmp_path: Path) -> None:
    exchange(page, "Where?", "It **is** here.")
    with page.expect_download() as download:
        answers(page).get_by_role("button", name="Download as Markdown").click()
    assert download.value.suggested_filename == "it-is-here.md"
    download.value.save_as(tmp_path / "answer.md")
    assert (tmp_path / "answer.md").read_text() == "It **is** here.\n"


@pytest.mark.long
def test_conversations_are_searched_by_what_was_said(page: Page) -> None:
    answer_with(page, "With a needle in it.")
    for text in ("first question", "second question"):
        say(page, text)
        expect(answers(page)).to_have_count(1)
        expect(page.locator("article[aria-busy=true]")).to_have_count(0)
        answer_with(page, "Nothing of interest.")
        page.get_by_role("button", name="New conversation").click()
    history = page.get_by_role("navigation", name="Conversations")
    search = page.get_by_role("searchbox", name="Search the conversations")
    search.fill("NEEDLE question")
    expect(history.get_by_text("1 found")).to_be_visible()
    history.get_by_role("button", name=re.compile("^first question")).click()
    expect(answers(page)).to_contain_text("With a needle in it.")
    search.fill("no such word")
    expect(history.get_by_text("Nothing found.")).to_be_visible()
    search.press("Escape")
    expect(history.get_by_role("button", name="second question", exact=True)).to_be_visible()


@pytest.mark.long
def test_a_text_file_is_sent_with_the_message(page: Page) -> None:
    answer_with(page, "I have read it.")
    choose(page, "text files", file(b"x = 1\n", "a.py", "text/x-python"), file(b"left out", "b.txt", "text/plain"))
    page.get_by_role("button", name="Remove b.txt").click()
    (message,) = sent_by(page, "What does it do?")
    assert message["content"] == "File a.py:\n\n```py\nx = 1\n```\n\nWhat does it do?"
    mine = page.get_by_role("article", name="You")
    mine.get_by_text("a.py").click()
    expect(mine.get_by_text("x = 1")).to_be_visible()
    expect(page.get_by_role("button", name="Remove")).to_have_count(0)


@pytest.mark.long
def test_a_file_that_is_no_text_is_refused_in_words(page: Page) -> None:
    choose(page, "text files", file(b"\xff\x00", "a.bin", ""))
    expect(page.get_by_role("alert").get_by_text("a.bin is not a text file")).to_be_visible()
