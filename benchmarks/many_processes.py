"""A layer of a million classes in four gloo processes beside the same layer in one; and a process that is killed.

    python benchmarks/many_processes.py results/processes.json [--vocab 1000000] [--dim 256]

Ids, logits and samples have to be the same bits, normalisers within their error, the best class that of a float64 scan.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headlong.bench.measure import claim_threads, environment, write_run

SIZE, QUERIES, K, TIMEOUT = 4, 64, 10, 30.0


def ask(engine: Any, hidden: Any) -> dict[str, Any]:
    """Every verb once; arrays by name, and how many bytes a query sent where engines count them."""
    import numpy as np

    traffic = getattr(engine, "traffic", None)
    vocab = engine.facts.vocab if traffic else engine.layer.vocab
    chosen = np.random.default_rng(1).integers(vocab, size=(QUERIES, 5))
    found: dict[str, Any] = {}
    for name, call in {
        "topk": lambda: engine.topk(hidden, K),
        "lse": lambda: engine.lse(hidden),
        "log_prob": lambda: engine.log_prob(hidden, chosen),
        "sample": lambda: engine.sample(hidden, n=4, temperature=0.8, seed=7),
        "sample, top-p": lambda: engine.sample(hidden[:8], top_p=0.95, seed=7),
    }.items():  # fmt: skip
        before = (traffic.sent, traffic.exchanges) if traffic else (0, 0)
        start = time.perf_counter()
        answer = call()
        seconds, rows = time.perf_counter() - start, int(answer.cost.rows.sum())
        found[name] = answer._replace(cost=None)._asdict() | {"seconds": seconds, "rows": rows}
        if traffic:
            asked = 8 if "top-p" in name else QUERIES
            found[name] |= {"sent": (traffic.sent - before[0]) / asked, "exchanges": traffic.exchanges - before[1]}
    return found


def peak() -> int:
    """Bytes that this process has held at most, mapped pages of the file included."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def one_of_four(rank: int, folder: str, queue: Any) -> None:
    import numpy as np
    import torch.distributed as dist

    import headlong as hl
    from headlong.errors import PeerError
    from headlong.integrations import distributed

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=SIZE)
    mine = distributed.slice_of(hl.Layer.load(f"{folder}/layer.safetensors"))
    engine = distributed.compile(mine, threads=1, timeout=TIMEOUT)
    hidden = np.load(f"{folder}/hidden.npy")
    found = ask(engine, hidden)
    queue.put((rank, found if rank == 0 else {name: found[name]["sent"] for name in found}, peak()))
    dist.barrier()
    queue.close()
    queue.join_thread()  # what was said has been written before anyone dies
    if rank == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    start = time.perf_counter()
    try:
        engine.topk(hidden, K)
        said = "no error"
    except PeerError as error:
        said = str(error)
    Path(folder, f"said-{rank}").write_text(f"{time.perf_counter() - start}\n{said}", encoding="utf-8")
    os._exit(0)  # no farewell to a group of which one is gone


def four(folder: str) -> tuple[dict[int, Any], dict[int, tuple[float, str]], int]:
    """What the ranks answered, what they said when the last was killed, and the largest of their peaks."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=one_of_four, args=(rank, folder, queue)) for rank in range(SIZE)]
    for process in ranks:
        process.start()
    answers, most = {}, 0
    for _ in ranks:
        while queue.empty() and not any(process.exitcode for process in ranks):
            time.sleep(0.1)
        if queue.empty():
            raise SystemExit("a process ended before it answered")
        rank, found, held = queue.get()
        answers[rank], most = found, max(most, held)
    for process in ranks:
        process.join(4 * TIMEOUT)
    texts = {rank: Path(folder, f"said-{rank}").read_text(encoding="utf-8") for rank in range(SIZE - 1)}
    return answers, {rank: (float(text.partition("\n")[0]), text.partition("\n")[2]) for rank, text in texts.items()}, most


def compared(name: str, one: dict[str, Any], many: dict[str, Any]) -> dict[str, Any]:
    """Which arrays are the same bits, and how far the normalisers are apart, as a share of their errors."""
    import numpy as np

    row: dict[str, Any] = {"verb": name}
    for field in ("ids", "logits", "score"):
        if field in one:
            row[f"{field} equal"] = bool(np.array_equal(one[field], many[field]))
    if "lse" in one:
        gap, allowed = np.abs(one["lse"] - many["lse"]), one["error"] + many["error"]
        row |= {"lse gap": float(gap.max()), "within error": bool((gap <= allowed).all()), "error": float(many["error"].max())}
    if "proved" in one:
        row["proved"] = float(np.mean(many["proved"]))
    row |= {"bytes a query": many["sent"], "exchanges": many["exchanges"], "rows": many["rows"], "rows of one": one["rows"]}
    return row | {"seconds": many["seconds"], "seconds of one": one["seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    settings = parser.parse_args()
    claim_threads(1)
    import numpy as np

    import headlong as hl
    from headlong.bench.synthetic import synthetic

    with tempfile.TemporaryDirectory() as folder:
        made = synthetic(settings.vocab, settings.dim, 1.0, QUERIES, 0, lambda done, count: None)
        made.layer.save(f"{folder}/layer.safetensors")
        np.save(f"{folder}/hidden.npy", made.hidden)
        hidden = made.hidden
        del made
        answers, said, most = four(folder)
        layer = hl.Layer.load(f"{folder}/layer.safetensors")
        one = ask(hl.compile(layer, threads=1), hidden)
        best = np.full(QUERIES, -np.inf), np.zeros(QUERIES, np.int64)
        for start in range(0, layer.vocab, 50_000):
            z = hidden.astype(np.float64) @ layer.weight[start : start + 50_000].astype(np.float64).T
            top = z.argmax(axis=1)
            higher = z.max(axis=1) > best[0]
            best = np.where(higher, z.max(axis=1), best[0]), np.where(higher, top + start, best[1])
    rows = [compared(name, one[name], answers[0][name]) for name in one]
    facts = {
        "vocab": settings.vocab, "dim": settings.dim, "dtype": "bfloat16", "processes": SIZE, "queries": QUERIES, "k": K,
        "best class as in float64": int((answers[0]["topk"]["ids"][:, 0] == best[1]).sum()),
        "largest peak of a process, bytes": most, "timeout, s": TIMEOUT,
        "killed": {f"rank {rank}": {"seconds": seconds, "said": text} for rank, (seconds, text) in said.items()},
    }  # fmt: skip
    write_run(settings.out, {"facts": facts, "environment": environment(1), "rows": rows})
    sys.stdout.write(settings.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
