"""The options of drafts: where they come from, how long they are, and how much is remembered for them."""

from __future__ import annotations

import argparse

from pyllmcancel.cli.options import add_option, add_switch, natural
from pyllmcancel.config import EngineConfig
from pyllmcancel.drafting.answer_drafts import NGRAM, PAST, PREDICTION
from pyllmcancel.step import MOST_EXTRA_OUTPUTS

ENGINE = EngineConfig()
NONE = "none"
TEXTS = (PAST, PREDICTION, NGRAM)
# llama-server's kinds of look-ups in the prompt and the answer; here there is one.
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
BY_A_MODEL = "draft-"  # llama-server's other kinds begin so


def add_draft_options(group: argparse._ArgumentGroup) -> None:
    text = (
        "sources of drafts, separated by commas: past, the API key's own recent answers; prediction, the request's"
        " field; ngram, the prompt and the answer, also as llama-server's ngram-…; none"
    )
    add_option(group, "spec-type", draft_sources, ",".join(TEXTS), text, metavar="TYPES")
    text = f"limit of drafted tokens in a step, at most {MOST_EXTRA_OUTPUTS}; 0: nothing is drafted"
    spellings = ("--draft", "--draft-n", "--spec-draft-n-max")
    add_option(group, "draft-max", natural, ENGINE.draft_max, text, also=spellings)
    text = "memory limit of the recent answers, in MiB"
    add_option(group, "past-answers-mib", natural, ENGINE.past_answers_mib, text)
    text = "let a prompt end in mid-word: completions begin with its last word, if a request does not say"
    add_switch(group, "token-healing", ENGINE.token_healing, text)


def draft_sources(text: str) -> tuple[str, ...]:
    """Return the sources, the likeliest first; with ``none`` there are none, as in llama-server."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name.startswith(BY_A_MODEL):
            raise argparse.ArgumentTypeError(
                f"{name} needs a draft model, which is not supported: answers are the same without it"
            )
        if name not in (NONE, *TEXTS, *LOOKUPS):
            raise argparse.ArgumentTypeError(f"must be some of {', '.join((NONE, *TEXTS, *LOOKUPS))}, not {name!r}")
    wanted = {NGRAM if name in LOOKUPS else name for name in names}
    return () if NONE in wanted else tuple(source for source in TEXTS if source in wanted)
