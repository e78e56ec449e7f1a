"""A run of the benchmark as it is stored."""

from __future__ import annotations

from typing import Any

RECORD: dict[str, Any] = {
    "environment": {
        "cpu": "A <CPU> & more",
        "threads": 2,
        "isa": ["avx2"],
        "isa_used": ["avx2"],
        "python": "3.12.0",
        "versions": {"numpy": "2.0"},
        "date": "2026-01-02",
    },
    "layer": {"vocab": 1000, "dim": 10, "dtype": "float32"},
    "settings": {"k": 2, "queries": 2, "baseline": ""},
    "truth": {"ids": [[3, 4], [5, 6]], "log_probs": [[-0.5, -1.0], [-0.25, -2.0]]},
    "answers": [
        {"contestant": "torch fp32", "about": {"reads": "all rows"}, "gap": [[0.0, 1e-6], [-2e-6, 0.0]]},
        {"contestant": "torch bf16", "about": {}, "gap": [[0.5, None], [0.1, 0.0]]},
        {
            "contestant": "cascade",
            "about": {"promise": "ids proved", "engine": "Engine(cascade)"},
            "gap": [[0.0, 0.0], [0.0, 0.0]],
            "error": [0.1, 0.1],
            "proved": [1, 1],
        },
        {
            "contestant": "hnswlib",
            "about": {"reads": "a graph"},
            "ids": [[3, 9], [5, 6]],
            "true": [[-0.5, -1.5], [-0.25, -2.0]],
        },
    ],
    "runs": [
        {"contestant": "torch fp32", "batch": 1, "bytes": 40000, "seconds": [8e-3, 12e-3, 10e-3]},
        {"contestant": "torch bf16", "batch": 1, "bytes": 20000, "seconds": [5e-3]},
        {"contestant": "cascade", "batch": 1, "bytes": 10000, "seconds": [1e-3, 3e-3]},
        {"contestant": "hnswlib", "batch": 1, "seconds": [1e-3]},
        {"contestant": "torch fp32", "batch": 4, "bytes": 10000, "seconds": [8e-3]},
        {"contestant": "torch bf16", "batch": 4, "bytes": 5000, "seconds": [4e-3]},
        {"contestant": "cascade", "batch": 4, "bytes": 4000, "seconds": [16e-3]},
    ],
    "emptied_by": "96 MB of other weights, multiplied by NumPy",
    "cold": [
        {"contestant": "torch fp32", "batch": 1, "bytes": 40000, "seconds": [20e-3, 22e-3, 24e-3]},
        {"contestant": "torch bf16", "batch": 1, "bytes": 20000, "seconds": [10e-3, 12e-3, 14e-3]},
        {"contestant": "cascade", "batch": 1, "bytes": 10000, "seconds": [5e-3, 4e-3, 7e-3]},
        {"contestant": "hnswlib", "batch": 1, "seconds": [2e-3, 2e-3, 2e-3]},
    ],
}

COLD: dict[str, Any] = {
    "environment": {**RECORD["environment"], "headlong": "0.1.0", "commit": "0123456789ab", "load": 0.5, "others": 0.3},
    "facts": {"over": "torch bf16", "between two calls": "96 MB of other weights, multiplied by PyTorch"},
    "rows": [
        {"method": name, "median_us": time, "q25_us": 0.9 * time, "q75_us": 1.2 * time, "p90_us": 2 * time,
         "speed_up": 12000 / time}
        for name, time in (("torch fp32", 22000.0), ("torch bf16", 12000.0), ("cascade", 5000.0), ("hnswlib", 2000.0))
    ],
}  # fmt: skip
"""A run of ``benchmarks/cold_calls.py``."""
