"""A run of the benchmark as it is stored."""

from __future__ import annotations

from typing import Any


def _row(contestant: str, batch: int, cold: float, loop: float, **more: Any) -> dict[str, Any]:
    def way(us: float, over: float) -> dict[str, Any]:
        quartiles = {"q10": 0.8 * us, "q25": 0.9 * us, "q75": 1.2 * us, "q90": 2 * us}
        return {"us": us, **quartiles, "x": over / us, "over": "torch bf16", "calls": 3}

    base = {"batch": batch, "k": 10, "contestant": contestant, "answered": 256, "same": 1.0, "about": {"reads": "all rows"}}
    return base | {"cold": way(cold, 12e3 / batch), "loop": way(loop, 6e3 / batch)} | more


ENGINE = {"promise": "ids proved", "engine": "Engine(codes)", "reason": "codes: because", "build": 0.5}
RECORD: dict[str, Any] = {
    "environment": {
        "cpu": "A <CPU> & more", "threads": 2, "isa": ["avx2"], "isa_used": ["avx2"], "python": "3.12.0",
        "versions": {"numpy": "2.0"}, "date": "2026-01-02", "headlong": "0.1.0", "commit": "0123456789ab", "others": 0.01,
        "emptied_by": "96 MB of other weights, multiplied by PyTorch",
    },
    "layer": {"vocab": 1000, "dim": 10, "dtype": "float32", "name": "made", "about": "a made layer"},
    "settings": {"k": 10, "queries": 256},
    "dense": ["torch fp32", "torch bf16"],
    "left_out": [],
    "rows": [
        _row("torch fp32", 1, 22e3, 10e3, worst=2e-6, read=1.0),
        _row("torch bf16", 1, 12e3, 6e3, worst=0.5, read=0.5, same=0.98),
        _row("headlong", 1, 5e3, 2e3, worst=0.0, read=0.25, proved=1.0, outside=0, about=ENGINE),
        _row("hnswlib", 1, 2e3, 1e3, same=0.75, about={"reads": "a graph"}),
        _row("torch fp32", 4, 3e3, 2e3, worst=2e-6, read=0.25),
        _row("torch bf16", 4, 3e3, 1.5e3, worst=0.5, read=0.125, same=0.98),
        _row("headlong", 4, 6e3, 5e3, worst=0.0, read=0.1, proved=1.0, outside=0, about=ENGINE),
    ],
}  # fmt: skip
