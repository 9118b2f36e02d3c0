"""The page's views with something in them: what is looked at, measured and photographed."""

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Literal, cast

from tests.browser.chromium import FilePayload, Page, expect

View = Literal["engine", "try", "chat"]
Scheme = Literal["light", "dark"]
VIEWS: tuple[View, ...] = ("engine", "try", "chat")
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
SIZES = ((360, 740), (768, 1024), (1280, 800), (2560, 1440))

# Resolves when what was asked for has been laid out and drawn.
DRAWN = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
# What reaches beyond the window's right edge, unless something around it scrolls or cuts.
WIDER = """() => {
  const cuts = (element) => element !== null && element !== document.documentElement && element !== document.body
    && (getComputedStyle(element).overflowX !== "visible" || cuts(element.parentElement));
  const wide = (element) => element.getBoundingClientRect().right > innerWidth + 0.5 && !cuts(element.parentElement);
  const all = [...document.querySelectorAll("body *")].filter(wide);
  return all.map((element) => element.outerHTML.slice(0, 200));
}"""


@dataclass(frozen=True, slots=True)
class Look:
    scheme: Scheme
    width: int
    height: int

    def show(self, page: Page) -> None:
        page.set_viewport_size({"width": self.width, "height": self.height})
        page.emulate_media(color_scheme=self.scheme)
        page.evaluate(DRAWN)


LOOKS = [Look(scheme, width, height) for scheme in SCHEMES for width, height in SIZES]


def what_is_too_wide(page: Page) -> list[str]:
    page.evaluate(DRAWN)
    if page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"):
        return []
    return cast("list[str]", page.evaluate(WIDER)) or ["the page"]


# Names as clients give them; one that is markup, and one that has no place to break.
SESSIONS = ["editor", "editor", "agent-7f3c", "chat", "<img src=x onerror=alert(1)>", "x" * 120, "batch", "batch"]
ANSWER = """## A table, code, and a word that does not break

| route | seconds | comment |
|---|---|---|
| `GET /v1/requests` | 0.002 | what is live, and what has ended lately, in a cell that is rather long for a table |

```python
def remember(self, request, *, reason=None, superseded_by=None, a_long_name_to_make_the_line_wide=True, and_another=0):
    return self.kept.setdefault(request.id, (reason, superseded_by))
```

Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaftsvorstandsvorsitzenderstellvertreter
"""


def enliven(page: Page, view: View) -> None:
    match view:
        case "engine":
            expect(page.get_by_role("button", name="cancel request").first).to_be_visible()
        case "try":
            editor = page.get_by_role("textbox", name="Code, with superseding")
            editor.press("Control+End")
            editor.press_sequentially("with open")
            region = page.get_by_role("region", name="Requests with superseding")
            expect(region.get_by_text("answering").or_(region.get_by_text("finished")).first).to_be_visible()
        case "chat":
            answer_with(page, ANSWER)
            say(page, "Show me a table and code")
            expect(page.get_by_role("article", name="Answer").get_by_role("table")).to_be_visible()
            page.unroute(CHATS)
            say(page, "And now go on, for long")
            expect(page.get_by_role("article", name="Answer").last).to_contain_text(re.compile(r"\w{3}"))


CHATS = "**/v1/chat/completions"


def say(page: Page, text: str) -> None:
    message = page.get_by_role("textbox", name="Message")
    message.fill(text)
    message.press("Enter")


def sent_by(page: Page, text: str) -> list[dict[str, Any]]:
    """Say something; return the messages that are sent."""
    with page.expect_request(CHATS) as sent:
        say(page, text)
    return sent.value.post_data_json["messages"]


def exchange(page: Page, text: str, answer: str, **more: Any) -> None:
    """Say something, which is answered so."""
    answer_with(page, answer, **more)
    say(page, text)


def file(content: bytes, name: str = "a.png", kind: str = "image/png") -> FilePayload:
    return {"name": name, "mimeType": kind, "buffer": content}


def choose(page: Page, kind: str, *files: FilePayload, shown: str = "") -> None:
    """Choose files of a kind, and wait until the picture of this name is shown."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name=f"Add {kind}").click()
    chooser.value.set_files(list(files))
    if shown:
        expect(page.get_by_role("img", name=shown)).to_be_visible()


def answer_with(page: Page, text: str, finish: str = "stop", **more: Any) -> None:
    """Have every chat answered by this text, and what else a delta may have."""
    deltas = [{"role": "assistant", **more}, *({"content": piece} for piece in re.findall(r"(?s).{1,20}", text))]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    head = {"id": "chat-1", "object": "chat.completion.chunk", "created": 0, "model": "hostile"}
    body = "".join(f"data: {json.dumps(head | event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route(CHATS, lambda route: route.fulfill(content_type="text/event-stream", body=body))


# Brings files as a paste or a drop does.
BRING = """(field, [kind, files, text]) => {
  const data = new DataTransfer();
  for (const [name, type, content] of files) {
    data.items.add(new File([Uint8Array.from(atob(content), (one) => one.charCodeAt(0))], name, { type }));
  }
  if (text) data.setData("text/plain", text);
  const event = kind === "paste" ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
    : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  field.dispatchEvent(event);
}"""


def bring(page: Page, kind: str, content: bytes, *, text: str = "") -> None:
    encoded = base64.b64encode(content).decode()
    page.get_by_role("textbox", name="Message").evaluate(BRING, [kind, [["a.png", "image/png", encoded]], text])
