"""The options of drafts: where they come from, how long they are, and how much is remembered for them."""

from __future__ import annotations

import argparse

from pyllmcancel.cli.draft_model_options import add_draft_model_options
from pyllmcancel.cli.options import add_option, add_switch, natural
from pyllmcancel.config import EngineConfig
from pyllmcancel.drafting.sources import HEADS, MODEL, NGRAM, SOURCES
from pyllmcancel.step import MOST_EXTRA_OUTPUTS

ENGINE = EngineConfig()
NONE = "none"
# llama-server's kinds of look-ups in the prompt and the answer; here there is one.
LOOKUPS = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
BY_A_MODEL = "draft-simple"  # llama-server's name for a draft model
BY_HEADS = "draft-mtp"  # and for the model's own heads
BY_OTHERS = "draft-"  # its other kinds begin so


def add_draft_options(group: argparse._ArgumentGroup) -> None:
    text = (
        "sources of drafts, separated by commas: past, the API key's own recent answers; prediction, the request's"
        " field; ngram, the prompt and the answer, also as llama-server's ngram-…; model, that of --model-draft, also"
        " as draft-simple; heads, those of the model itself, also as draft-mtp; none"
    )
    add_option(group, "spec-type", draft_sources, ",".join(ENGINE.draft_sources), text, metavar="TYPES")
    text = f"limit of drafted tokens in a step, at most {MOST_EXTRA_OUTPUTS}; 0: nothing is drafted"
    spellings = ("--draft", "--draft-n", "--spec-draft-n-max")
    add_option(group, "draft-max", natural, ENGINE.draft_max, text, also=spellings)
    text = "memory limit of the recent answers, in MiB"
    add_option(group, "past-answers-mib", natural, ENGINE.past_answers_mib, text)
    text = "let prompts end in mid-word: completions write the last word anew, unless a request says otherwise"
    add_switch(group, "token-healing", ENGINE.token_healing, text)
    add_draft_model_options(group)


def draft_sources(text: str) -> tuple[str, ...]:
    """Return the sources, the likeliest first; with ``none`` there are none, as in llama-server."""
    names = [name.strip() for name in text.split(",")]
    known = (NONE, *SOURCES, *LOOKUPS, BY_A_MODEL, BY_HEADS)
    for name in names:
        if name not in known and name.startswith(BY_OTHERS):
            raise argparse.ArgumentTypeError(
                f"{name} is not supported: such a model reads the hidden states of several layers; drafts come from"
                f" texts or, as {BY_A_MODEL}, from a smaller model or, as {BY_HEADS}, from the model's own heads"
            )
        if name not in known:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(known)}, not {name!r}")
    theirs = dict.fromkeys(LOOKUPS, NGRAM) | {BY_A_MODEL: MODEL, BY_HEADS: HEADS}
    wanted = {theirs.get(name, name) for name in names}
    return () if NONE in wanted else tuple(source for source in SOURCES if source in wanted)
