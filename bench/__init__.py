"""Benchmarks and end-to-end checks of the server, beside other servers where that says more.

| module | what it measures |
|---|---|
| `side_by_side` | the same measurements on several servers, in turn: JSON files, of which `report` makes REPORT.md |
| `scenarios` | promises about cancels, tried on a real server: checks that pass or fail |
| `native` | the core alone: abort latency, callback, boundary to Python, sampling, tokens per second |
| `gpu` | cuts of a step, and cancels, on a device without ggml's abort callback |
| `company` | how many answers change with the requests that they are computed beside |
| `drafting` | what drafted tokens gain, beside llama-server, and that they change no answer |
| `busy` | speed and cancels beside 0 to 8 busy programs |

`peers` starts servers, `prepare` installs them, `random_model` writes models with random weights. The clients, and the
reading of a process's CPU time, are those of the package: `pyllmcancel.bench`.
"""
