"""Compare answers with drafts and without for as long as wanted.

    python -m tests.races.fuzz_drafts --answers 10000 --seed 100

Exits with an error at the first answer that differs. See `tests/races/test_drafted_answers_are_the_same.py`.
"""

import argparse
import sys
import tempfile
from itertools import count
from pathlib import Path

from tests.races.test_drafted_answers_are_the_same import N_ROUNDS, Asker, Pair
from tests.support import tiny_models
from tests.support.tiny_heads import write_tiny_heads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=100, help="of the first requests; default: %(default)s")
    parser.add_argument("--heads", action="store_true", help="draft by heads in the model's file only")
    given = parser.parse_args()
    n_compared = n_accepted = n_in_company = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        model = write_tiny_heads(path, strength=0.05) if given.heads else tiny_models.write_tiny_llama(path)
        sources = {"draft_sources": ("heads",)} if given.heads else {}
        for seed in count(given.seed):
            pair, asker = Pair(model, **sources), Asker(seed)
            try:
                for _ in range(N_ROUNDS):
                    pair.compare_round(asker)
            finally:
                pair.close()
            n_compared += pair.n_compared
            n_accepted += pair.n_accepted
            n_in_company += pair.n_in_company
            told = f"{n_compared} answers are the same, {n_accepted} drafted tokens accepted"
            sys.stdout.write(f"seed {seed}: {told}, {n_in_company} steps with drafts in company\n")
            sys.stdout.flush()
            if n_compared >= given.answers:
                return


if __name__ == "__main__":
    main()
