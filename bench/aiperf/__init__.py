"""NVIDIA AIPerf's request-cancellation mode against one or several servers in turn, with no network.

    python3 -m venv build/aiperf && build/aiperf/bin/pip install aiperf==0.13.0      # 1.2 GB
    python -m bench.side_by_side --model MODEL.gguf --out build/bench --only aiperf-50-percent

`page` has the runs of NVIDIA's documentation page, `tokenizer` makes a tokenizer of the model itself, `command` runs
AIPerf, `summary` reads what it wrote.
"""
