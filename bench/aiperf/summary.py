"""What a run of AIPerf 0.13 says, from the files that it wrote.

Outcomes are counted from the rows of single requests: AIPerf's own summary counts the requests that it cut as errors,
and its rows' wall-clock times are late by a request's age when it was cut. Its figures of speed hold complete answers
only, so what was generated for those who left counts for nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

SUMMARY_FILE = "profile_export_aiperf.json"
ROWS_FILE = "profile_export.jsonl"
FIGURES = {
    "ttft_p50_ms": ("time_to_first_token", "p50"),
    "ttft_p99_ms": ("time_to_first_token", "p99"),
    "itl_mean_ms": ("inter_token_latency", "avg"),
    "latency_p50_ms": ("request_latency", "p50"),
    "latency_p99_ms": ("request_latency", "p99"),
    "tokens_per_second": ("output_token_throughput", "avg"),
    "requests_per_second": ("request_throughput", "avg"),
    "prompt_tokens": ("input_sequence_length", "avg"),
    "answer_tokens": ("output_sequence_length", "avg"),
    "seconds": ("benchmark_duration", "avg"),
}


def summarise(folder: Path) -> dict[str, Any]:
    """Outcomes and figures of one run. Figures are None where AIPerf gave none, as when no request was answered."""
    summary = json.loads(_read(folder / SUMMARY_FILE) or "{}")
    figures = {name: (summary.get(tag) or {}).get(kind) for name, (tag, kind) in FIGURES.items()}
    rows = [json.loads(line) for line in _read(folder / ROWS_FILE).splitlines() if line.strip()]
    return outcomes(rows) | figures | {"cost": json.loads(_read(folder / "cost.json") or "null")}


def outcomes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the measured requests ended. An error is one of a request that AIPerf did not cut itself."""
    measured = [row for row in rows if row["metadata"]["benchmark_phase"] == "profiling"]
    cut = [row for row in measured if row["metadata"]["was_cancelled"]]
    failed = [row for row in measured if row.get("error") and not row["metadata"]["was_cancelled"]]
    kinds = Counter(f"{row['error'].get('code') or ''} {row['error'].get('type')}".strip() for row in failed)
    return {
        "requests": len(measured),
        "ok": len(measured) - len(cut) - len(failed),
        "cancelled": len(cut),
        "errors": len(failed),
        "error_kinds": dict(kinds),
        "warmup_errors": sum(bool(row.get("error")) for row in rows if row not in measured),
    }


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
