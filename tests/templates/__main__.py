"""Every form in every template of llama.cpp's: how many are refused, lose words or move them, and each that is or does.

python -m tests.templates
python -m tests.templates --as-sent     # without the steps of `pyllmcancel.chat.order`
"""

import argparse
import sys
from collections import Counter

from tests.templates.bodies import FORMS
from tests.templates.matrix import NAMES, outcome


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.templates")
    parser.add_argument("--as-sent", action="store_true", help="messages in the order in which they were sent")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for name in NAMES:
        for form in FORMS:
            found = outcome(name, form, as_sent=options.as_sent)
            counts[found.kind] += 1
            if found.kind != "whole":
                sys.stdout.write(f"{name} | {form.name} | {found}\n")
    summary = ", ".join(f"{number} {what}" for what, number in counts.most_common())
    sys.stdout.write(f"{len(NAMES)} templates, {len(FORMS)} forms: {summary}\n")


if __name__ == "__main__":
    main()
