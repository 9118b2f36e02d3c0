"""The same measurements on several servers, in one run, in turn; what is found goes to JSON files, one a part.

    python -m bench.side_by_side --model MODEL.gguf --out build/bench
    python -m bench.report build/bench

A part is one measurement of one peer in one round, on a server started for it. Parts whose file is there are kept, so
a run can be stopped and resumed, and `--only` adds single ones. `measurements` lists them; each is a small module.
"""
