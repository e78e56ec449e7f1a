"""A layer that people have, read by every installed dense product and by headlong, in batches of several sizes.

    python benchmarks/dense_products.py --layer smollm2 --batch 1,8,16,64,1024 --json results/beside.json
    python benchmarks/dense_products.py --layer smollm2 --batch 512,1024 --way cold --seconds 25 --json results/beside.json
    python benchmarks/dense_products.py --layer smollm2 --indexes --json results/beside.json
    python benchmarks/dense_products.py --layer smollm2 --batch 1 --busy 12 --json results/beside.json

    x = microseconds of a query of the fastest dense product at this batch size / those of the row        below 1: slower

*cold*: before each call PyTorch multiplies other weights, more than the caches hold; *loop*: nothing but such calls. All take
turns in a fresh order. Batches of 16 are asked for 16 classes, as drafters of tokens do, others for 10. ``same`` is the share
of those ids that float64 has, too, and ``worst`` the largest ``|log p^ - log p|`` of the ids that were named. Of batches,
who takes more than 2.5 times as long as the fastest dense product is not timed, calls of a quarter of a second cold alone.
``--indexes``: beside indexes over the rows, too,
built as their authors recommend for inner products; the bias is one more coordinate. ``--busy``: while so many other processes
count.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from calls_beside_pytorch import busy
from common.real_layers import LAYERS, load
from headlong.bench import measure

OURS = ("headlong", "headlong, calibrated", "headlong, calibrated, ids only", "headlong, proved within 0.2")
WAYS, NEAR = ("cold", "loop"), 2.5


def line(row: dict[str, Any]) -> str:
    worst = f"{row['worst']:.2g}" if "worst" in row else "none"
    shown = (f"{row[way]['us']:>10,.0f} us {row[way]['x']:>5.2f}x" if way in row else "" for way in WAYS)
    times = "  ".join(f"{one:>20}" for one in shown)
    return f"{row['batch']:>5}  {row['contestant']:<32} {times}  {row['same']:>8.2%}  {worst:>8}"


def shown(record: dict[str, Any]) -> str:
    layer, made, lines = record["layer"], record["environment"], []
    lines.append(f"{layer['name']}: {layer['about']}, {layer['vocab']:,} x {layer['dim']}; a query of a batch takes")
    lines.append(f"{'batch':>5}  {'':<32} {'cold':>20}  {'loop':>20}  {'same':>8}  {'worst':>8}")
    for batch in dict.fromkeys(row["batch"] for row in record["rows"]):
        rows = [row for row in record["rows"] if row["batch"] == batch]
        over = ", ".join(dict.fromkeys(f"{way}: {row[way]['over']}" for way in WAYS for row in rows if way in row))
        lines += [f"{batch:>5}  fastest dense product, {over}", *map(line, rows)]
    isa = ", ".join(made["isa"])
    lines.append(f"{made['cpu']}, {made['threads']} threads, {isa}, others {made['others']}, commit {made['commit']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layer", default="smollm2", help=f"{', '.join(LAYERS)}, or a folder of 'headlong harvest'")
    parser.add_argument("--batch", default="1,8,16,64,1024")
    parser.add_argument("--only", default="", help="rivals, with semicolons; default: all dense products that are installed")
    parser.add_argument("--indexes", action="store_true", help="and all indexes that are installed, as a table of its own")
    parser.add_argument("--busy", type=int, default=0, help="processes that count beside all this, as a table of its own")
    parser.add_argument("--way", choices=WAYS, action="append", help="default: both")
    parser.add_argument("--engines", default=";".join(OURS), help="of headlong, with semicolons")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=6.0, help="at most about so many for each batch size and way")
    parser.add_argument("--json", help="the file of a page's results; its runs of other layers stay")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    from headlong.bench import rivals, rows

    known, sizes = set(rivals.RIVALS), rows.batches(asked.batch)
    one = load(asked.layer)
    others = rivals.installed() if asked.indexes else rivals.dense_installed()
    others += sorted(set(rivals.RIVALS) - known)  # that the layer came with
    names = [name.strip() for name in f"{asked.engines};{asked.only or ';'.join(others)}".split(";")]
    settings = rows.Settings(
        batches=sizes, threads=asked.threads, queries=max(256, 2 * max(sizes)), rounds=asked.rounds, seconds=asked.seconds,
        near=NEAR, ways=tuple(asked.way or WAYS),
    )  # fmt: skip
    with ExitStack() as beside:

        def stage(label: str) -> measure.Progress:
            if label.startswith("time"):
                beside.enter_context(busy(asked.busy))
                asked.busy = 0
            return measure.silent

        told = {**vars(asked), "only": asked.only and f"'{asked.only}'", "way": asked.way and " --way ".join(asked.way)}
        told["engines"] = f"'{asked.engines}'" if asked.engines != ";".join(OURS) else ""
        record = rows.run(one.layer, one.valid, list(filter(None, names)), settings, stage, one.train)
    record["layer"], record["busy"] = record["layer"] | one.facts(), told["busy"]
    sys.stdout.write(f"{shown(record)}\n")
    if asked.json:
        words = (f"--{key} {told[key]}" for key in ("layer", "batch", "seconds", "engines", "only", "way", "busy") if told[key])
        command = " ".join(["python benchmarks/dense_products.py", *words]) + " --indexes" * asked.indexes
        table = "busy" if told["busy"] else "indexes" if asked.indexes else "dense products"
        measure.keep(asked.json, table, *joined(asked.json, table, record, one.name, command))
    return 0


def joined(file: str, table: str, record: dict[str, Any], name: str, command: str) -> tuple[dict[str, Any], str, str]:
    """The run with the file's rows of other batch sizes, where those are of the same commit on the same kind of machine."""
    old = measure.read_run(file)["tables"].get(table, {}).get(name) if Path(file).is_file() else None
    now, then = record["environment"], old and old["environment"]
    if not old or any(now[key] != then[key] for key in ("commit", "cpu", "isa", "threads", "versions")):
        return record, name, command
    own = {row["batch"] for row in record["rows"]}
    rows = [row for row in old["rows"] if row["batch"] not in own] + record["rows"]
    worst = {key: max(now[key] or 0, then[key] or 0) for key in ("load", "others")}
    first = old["command"].removesuffix(f" --json {file}").removesuffix(f"; {command}")
    whole = {**record, "rows": sorted(rows, key=lambda row: row["batch"]), "environment": {**now, **worst}}
    return whole, name, f"{first}; {command}" if first != command else command


if __name__ == "__main__":
    sys.exit(main())
