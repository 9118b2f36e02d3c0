"""Benchmarks and end-to-end checks of the server, beside other servers where that says more.

| module | what it measures |
|---|---|
| `side_by_side` | the same measurements on several servers, in turn: JSON files, of which `report` makes REPORT.md |
| `scenarios` | the storm and the soak of a real server: checks that pass or fail |
| `models` | the same over several models and replicas, and what the front costs |
| `native` | the core alone: abort latency, boundary to Python, pauses between steps, tokens per second |
| `gpu` | a plan of what is to be known of a GPU, in short runs |
| `company` | how many answers change with the requests that they are computed beside |
| `drafting` | what drafted tokens gain, beside llama-server, and that they change no answer |

`peers` starts servers, `prepare` installs them, `random_model` writes models with random weights. The clients, and the
reading of a process's CPU time, are those of the package: `pyllmcancel.bench`.
"""
