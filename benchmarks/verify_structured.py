"""Holds the engines of structured layers against their heads' own distributions in float64, on real hidden vectors.

    HEADLONG_DATA=... python benchmarks/verify_structured.py results/verify-structured.json

Each head takes some training steps on the hidden vectors of a word LSTM (Penn Treebank, V = 10,000, D = 200), is frozen and
compiled, and answers for vectors of the test text: the ten likeliest classes, the normaliser and the targets'
log-probabilities, beside ``log_prob`` of the same head in float64, which is PyTorch's and shares no code with an engine.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headlong as hl
from headlong.bench.measure import environment
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import steps

QUERIES, STEPS, BLOCK = 5_120, 60, 256
VERIFIED = ("two levels, frequency", "two levels, clustered", "tree, huffman", "tree, learned", "bands", "differentiated")


def checked(name: str, head: Any, data: study.Data) -> dict[str, Any]:
    """Counts of what differs, and by how much at most."""
    engine = hl.compile(head.to_layer(), delta=0.0, eps=1e-6)
    wide = copy.deepcopy(head).double().eval()
    rows = np.linspace(0, len(data.test_target) - 1, QUERIES).astype(np.int64)
    hidden, target = data.test_hidden[rows].astype(np.float32), data.test_target[rows]
    wrong, off = 0, {"log_prob": 0.0, "lse": 0.0, "topk": 0.0}
    for start in range(0, QUERIES, BLOCK):
        part = slice(start, start + BLOCK)
        with torch.no_grad():
            dense = wide.log_prob(torch.from_numpy(hidden[part]).double())
        values, ids = (found.numpy() for found in dense.topk(10))
        top, scored = engine.topk(hidden[part], k=10), engine.log_prob(hidden[part], target[part, None])
        # at a tie to the last digits either order is right
        mine = np.take_along_axis(dense.numpy(), top.ids, 1)
        wrong += int(((top.ids != ids) & (np.abs(mine - values) > 1e-12)).sum())
        off["topk"] = max(off["topk"], float(np.abs(top.log_probs - values).max()))
        off["lse"] = max(off["lse"], float(np.abs(scored.lse - engine.lse(hidden[part]).lse).max()))
        exact = np.take_along_axis(dense.numpy(), target[part, None], 1)
        off["log_prob"] = max(off["log_prob"], float(np.abs(scored.log_probs - exact).max()))
    return {"head": name, "engine": repr(engine), "queries": QUERIES, "wrong_ids": wrong, "largest_error": off}


def main(path: Path) -> None:
    data = study.read(Path(os.environ["HEADLONG_DATA"]), STEPS * steps.BATCH)
    factories, found = study.heads(data), []
    for name in VERIFIED:
        head = factories[name]()
        steps.start(head)
        steps.train(head, data, lambda done, total: None)
        found.append(checked(name, head, data))
        sys.stderr.write(f"{found[-1]}\n")
        record = {"environment": environment(torch.get_num_threads()), "steps": STEPS, "heads": found}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
