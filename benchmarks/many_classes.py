"""scikit-learn's LogisticRegression on 2,000 classes, and one of 20,000 classes of given coefficients: predict_topk.

    python benchmarks/many_classes.py fit FOLDER                      fits the first, makes the second's coefficients
    python benchmarks/many_classes.py time FOLDER OUT.json            labels against the dense ones, and times, interleaved
    python benchmarks/many_classes.py memory FOLDER OUT.json          the peak of each way in a process of its own, added
    python benchmarks/many_classes.py contract OUT.json               check_estimator, added

"dense" is what scikit-learn does: decision_function, the k best by argpartition, their softmax. "dense in blocks" does the
same for 256 rows at a time, so that it never holds the [n, classes] matrix either.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlong.bench.measure import Contestant, Schedule, claim_threads, contest, environment, pinned, write_run

THREADS, K, ROWS, BLOCK = 2, 5, 4096, 256
NAMES = ("fitted", "given")


def fit(folder: Path) -> None:
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((2000, 64))
    target = np.concatenate([np.arange(2000), rng.integers(0, 2000, 8000)])
    features = centres[target] + 0.7 * rng.standard_normal((len(target), 64))
    model = LogisticRegression(max_iter=60).fit(features, target)
    asked = centres[rng.integers(0, 2000, ROWS)] + 0.7 * rng.standard_normal((ROWS, 64))
    about = f", {int(model.n_iter_.max())} iterations"
    np.savez(folder / "fitted.npz", coef=model.coef_, intercept=model.intercept_, asked=asked, about=about)
    falling = np.arange(1, 257) ** -0.25
    turn = np.linalg.qr(rng.standard_normal((256, 256)))[0]
    coef = 0.5 * (rng.standard_normal((20_000, 256)) * falling) @ turn
    asked = (rng.standard_normal((ROWS, 256)) * falling) @ turn
    offset = rng.standard_normal(20_000)
    np.savez(folder / "given.npz", coef=coef, intercept=offset, asked=asked, about="")


def subject(folder: Path, name: str) -> tuple[Any, Any, str]:
    """The classifier, the rows to classify, and what to say of them."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    held = np.load(folder / f"{name}.npz")
    model = LogisticRegression()
    model.coef_, model.intercept_ = held["coef"], held["intercept"]
    model.classes_, model.n_features_in_ = np.arange(len(model.coef_)), model.coef_.shape[1]
    return model, held["asked"], str(held["about"])


def dense(model: Any, rows: Any) -> tuple[Any, Any]:
    """``(proba, labels) [n, k]`` from all decision values."""
    import numpy as np

    scores = model.decision_function(rows)
    best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    found = np.take_along_axis(scores, best, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    peak = scores.max(axis=1, keepdims=True)
    scores -= peak
    np.exp(scores, out=scores)
    total = scores.sum(axis=1, keepdims=True)
    found, best = np.take_along_axis(found, order, 1), np.take_along_axis(best, order, 1)
    return np.exp(found - peak) / total, model.classes_[best]


def dense_in_blocks(model: Any, rows: Any) -> tuple[Any, Any]:
    import numpy as np

    parts = [dense(model, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def ways(model: Any) -> dict[str, Callable[[Any], tuple[Any, Any]]]:
    from headlong.integrations.sklearn import TopKClassifier

    ours = TopKClassifier.of(model)
    return {
        "dense": lambda rows: dense(model, rows),
        "dense in blocks": lambda rows: dense_in_blocks(model, rows),
        "predict_topk": lambda rows: ours.predict_topk(rows, K),
    }


def times(folder: Path) -> list[dict[str, Any]]:
    import numpy as np

    found = []
    for name in NAMES:
        model, asked, about = subject(folder, name)
        calls = ways(model)
        (proba, labels), (expected, right) = calls["predict_topk"](asked), calls["dense"](asked)
        shared = {"classes": len(model.classes_), "features": asked.shape[1], "coefficients": f"{name}{about}"}
        shared |= {"rows with equal labels": int((labels == right).all(axis=1).sum()), "of": len(asked)}
        shared["worst log-probability"] = float(np.abs(np.log(proba) - np.log(expected)).max())
        for batch in (1, 64, ROWS):
            entries = [Contestant(way, call) for way, call in calls.items()]
            schedule = Schedule(rounds=5, settle=1, calls=1 if batch == ROWS else 5, seconds=25.0)
            timings = contest(entries, asked, batch, schedule)
            medians = {one.contestant: statistics.median(one.seconds) / batch for one in timings}
            for one in timings:
                row = {"way": one.contestant, "at once": batch, "µs a row": 1e6 * medians[one.contestant]}
                row["times dense's speed"] = medians["dense"] / medians[one.contestant]
                found.append(shared | row | {"seconds": one.seconds})
    return found


def alone(folder: Path, name: str, way: str) -> None:
    """Prints by how many bytes one call on all rows raises the peak of this process; run by :func:`memory`."""
    model, asked, _ = subject(folder, name)
    call = ways(model)[way]
    call(asked[:64])
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    call(asked)
    sys.stdout.write(f"{max(0, resident('VmHWM') - before)}\n")


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def memory(folder: Path) -> dict[str, int]:
    found = {}
    for name in NAMES:
        for way in ("dense", "dense in blocks", "predict_topk"):
            command = [sys.executable, __file__, "alone", str(folder), name, way]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[f"peak of {way}, {name}, {ROWS} rows, bytes"] = int(said)
    return found


def contract() -> dict[str, Any]:
    """What ``check_estimator`` says of both classifiers."""
    import warnings
    from collections import Counter

    from sklearn.utils.estimator_checks import check_estimator

    from headlong.integrations.sklearn import HeadClassifier, TopKClassifier

    found = {}
    for estimator in (TopKClassifier(), HeadClassifier(random_state=0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checks = check_estimator(estimator, on_fail=None)
        found[f"check_estimator, {type(estimator).__name__}"] = dict(Counter(check["status"] for check in checks))
    return found


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    claim_threads(THREADS)
    what, rest = sys.argv[1], sys.argv[2:]
    if what == "fit":
        return fit(Path(rest[0]))
    if what == "alone":
        return alone(Path(rest[0]), rest[1], rest[2])
    out = Path(rest[-1])
    record = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"facts": {"k": K}, "rows": []}
    with pinned(THREADS):
        if what == "time":
            record["rows"] = times(Path(rest[0]))
        else:
            record["facts"] |= memory(Path(rest[0])) if what == "memory" else contract()
    import sklearn

    record["facts"]["scikit-learn"] = sklearn.__version__
    write_run(out, record | {"environment": environment(THREADS)})
    for row in record["rows"]:
        sys.stdout.write(f"{ {key: value for key, value in row.items() if key != 'seconds'} }\n")
    sys.stdout.write(json.dumps(record["facts"], indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
