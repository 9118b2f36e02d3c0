"""Microbenchmarks of the native core: cancel latency, boundary to Python, pauses between steps, tokens per second.

    python -m bench.prepare programs                            # builds the probe, and llama.cpp's own benchmarks
    python -m bench.native --help                               # measures, prints, writes build/bench/micro-*.json
    python -m pytest bench/native                               # every benchmark runs, on the packaged model

`probe.cpp` is the core through pybind11; each other module is one benchmark.
"""
