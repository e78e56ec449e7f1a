"""Whether the choice between blocks and a pass over all classes is right: both forced, and what ``compile`` chose, in turns.

    python benchmarks/block_choice.py FOLDER OUT.json NAME [NAME ...]     names: those of LAYERS, "trained", "phrases CLASSES"

``trained`` reads FOLDER/layer.safetensors and FOLDER/hidden.safetensors, "phrases" what ``phrases.py make FOLDER`` left. Each
row is one promise, k, batch and state: microseconds a query of each way, bytes, and ``over``, the median of the way that was
chosen (as it is where it is forced: both are the same calls) over that of the better one. A layer that the file holds already
is measured again.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import choice
import numpy as np
from blocks import recommender, recurrent
from phrases import read

import headlong as hl
from headlong.bench import measure
from headlong.bench.synthetic import synthetic
from headlong.cli import inputs
from headlong.cli.terminal import bars
from headlong.engines.base import Engine

THREADS, CALIBRATION, ROUNDS, SEED = 2, 4096, 20, 3
PROMISES: dict[str, dict[str, Any]] = {
    "ids proved": {},
    "ids but for 0.01": {"delta_ids": 0.01, "over": {"query", "calibration"}},
}
ASKED, BATCHES = (1, 10, 64, 256), (1, 2, 8, 64)
MADE = {
    "10,000 x 100, a = 0.5": (10_000, 100, 0.5),
    "10,000 x 200, a = 1": (10_000, 200, 1.0),
    "12,000 x 64, a = 1": (12_000, 64, 1.0),
    "20,000 x 128, a = 2": (20_000, 128, 2.0),
    "50,000 x 256, a = 1": (50_000, 256, 1.0),
}
LAYERS = ("a recommender's, made", "an LSTM's, made", *MADE)
EVERY = 2**31 - 1


def subject(folder: Path, name: str) -> tuple[hl.Layer, Any, Any]:
    """The layer, vectors that choose and vectors that ask."""
    if name.startswith("phrases"):
        return read(folder, int(name.split()[1]))
    if name in MADE:
        with bars() as stage:
            made = synthetic(*MADE[name], 512, SEED, stage(name))
        return made.layer, made.calibration[:CALIBRATION], made.hidden
    if name == "trained":
        layer = inputs.layer(str(folder / "layer.safetensors"))
        hidden = np.asarray(inputs.hidden(str(folder / "hidden.safetensors"))).astype(np.float32)
        hidden = np.random.default_rng(0).permutation(hidden)
    else:
        layer, hidden = recommender() if name == LAYERS[0] else recurrent()
    return layer, hidden[:CALIBRATION], hidden[CALIBRATION : CALIBRATION + 512]


def ways(layer: hl.Layer, calibration: Any, promise: dict[str, Any]) -> dict[str, Engine]:
    """Blocks for everything, for nothing, and as chosen: three engines of the same looks."""
    options: dict[str, Any] = {"eps": math.inf, "calibration": calibration, "threads": THREADS, **promise}
    forced, chosen = (hl.compile(layer, "cascade", blocks=on, **options) for on in (True, None))
    assert isinstance(forced, Engine)
    assert isinstance(chosen, Engine)
    assert forced.plan.blocks is not None

    def like(blocks: Any) -> Engine:
        plan = forced.plan._replace(blocks=blocks)
        return Engine(layer, forced.method, plan, forced.norms, forced.promise, threads=THREADS)

    always = forced.plan.blocks._replace(batch=EVERY, most=layer.vocab)
    return {"blocks": like(always), "every class": like(None), "chosen": chosen}


def timed(field: dict[str, Engine], asked: Any, k: int, batch: int, other: Any) -> dict[str, float]:
    """Median microseconds a query, in turns."""
    taken = choice.timed(field, asked, batch, ROUNDS, other, k)
    return {name: statistics.median(all_) / batch for name, all_ in taken.items()}


def cases(name: str, folder: Path) -> list[dict[str, Any]]:
    layer, calibration, asked = subject(folder, name)
    other, rows = np.ones(96 * 250_000, np.float32), []
    for promise, options in PROMISES.items():
        field = ways(layer, calibration, options)
        blocks = field["chosen"].plan.blocks
        most, few, together = (0, 0, 0) if blocks is None else (blocks.most, blocks.batch, blocks.together)
        took = {"taken up to k": most, "taken up to batch": few, "in larger ones up to k": together}
        for k in ASKED:
            counted = {way: [one.topk(row[None], k).cost for row in asked[:32]] for way, one in field.items()}
            about = {"bytes": {way: statistics.mean(float(c.bytes[0]) for c in costs) for way, costs in counted.items()}}
            about |= {"rows": {way: statistics.mean(float(c.rows[0]) for c in costs) for way, costs in counted.items()}}
            for batch in BATCHES:
                for state, between in (("a loop", None), ("cold caches", other)):
                    us = timed(field, asked, k, batch, between)
                    way = "blocks" if k <= (most if batch <= few else together) else "every class"
                    over = us[way] / min(us["blocks"], us["every class"])
                    row = {
                        "layer": name,
                        "promise": promise,
                        "k": k,
                        "batch": batch,
                        "state": state,
                        "us": us,
                        "way": way,
                        "over": over,
                    }
                    rows.append(row | (about | took if batch == 1 else {}))
    return rows


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    folder, out, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    rows: list[dict[str, Any]] = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.is_file() else []
    with measure.pinned(THREADS):
        for name in names:
            rows = [row for row in rows if row["layer"] != name] + cases(name, folder)
            record = {"environment": measure.environment(THREADS), "calibration": CALIBRATION, "rows": rows}
            out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
