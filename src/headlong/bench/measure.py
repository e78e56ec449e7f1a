"""Times several ways of answering the same queries, fairly, and keeps what was measured.

::

    seconds[name, batch] = [wall time of one call, ...]        one entry for every timed call, nothing averaged

In every round each contestant has one turn, in a fresh order: a pause (the threads of others fall asleep), untimed calls
(its own wake, its data enters the caches, the processor's clock rises again), then timed calls on one batch of queries
after another. All contestants of a round see the same queries. What a call means is the contestant's business; turning
times into medians and factors is :mod:`headlong.bench.rows`'s. Knows nothing of engines, and does not import NumPy,
so that :func:`claim_threads` can come before it.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import headlong
from headlong.errors import MalformedFileError, OptionError, StoreError, cause

FORMAT, VERSION = "headlong-run", 2
PACKAGES = (
    "numpy", "torch", "faiss-cpu", "hnswlib", "usearch", "scann", "lorann", "rabitqlib", "turbovec", "pyvsag",
    "llama-cpp-python", "onnxruntime",
)  # fmt: skip
ISA_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimd", "asimddp", "i8mm")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HEADLONG_THREADS")

Progress = Callable[[int, int], None]
Clock = Callable[[Callable[[Any], Any], Any], float]
"""``clock(call, block)``: the seconds that ``call(block)`` takes."""


def silent(done: int, total: int) -> None:
    """Progress that is not shown."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Contestant:
    """``answer(call(prepare(queries)))``; only ``call`` is timed.

    ``prepare`` brings the queries into the form that the contestant reads (a tensor, another type), ``answer`` its
    result into one that others can read. ``about`` is what the record says of it.
    """

    name: str
    call: Callable[[Any], Any]
    prepare: Callable[[Any], Any] = _same
    answer: Callable[[Any], Any] = _same
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Schedule:
    """How often: ``rounds`` turns of ``calls`` timed calls each, or fewer rounds (never fewer than three) once ``seconds``
    have gone by. ``pause`` comes before each turn: idle threads of the contestant before, which OpenMP and BLAS keep
    spinning for up to some 25 ms, would take a processor from this one. Untimed calls follow, ``settle`` or more, until
    they took as long: a processor that was idle is slow for some milliseconds, which slow calls would not notice."""

    rounds: int = 15
    settle: int = 2
    calls: int = 5
    pause: float = 0.03
    seconds: float = 30.0
    seed: int = 0


class Timing(NamedTuple):
    """One contestant at one batch size: the wall time of each timed call."""

    contestant: str
    batch: int
    seconds: list[float]


def wall(call: Callable[[Any], Any], block: Any) -> float:
    """The clock of the CPU."""
    start = time.perf_counter()
    call(block)
    return time.perf_counter() - start


def contest(
    contestants: Sequence[Contestant],
    queries: Any,
    batch: int,
    schedule: Schedule | None = None,
    progress: Progress | None = None,
    clock: Clock = wall,
) -> list[Timing]:
    """Interleaved times of ``call(queries[j : j + batch])`` for every contestant; ``queries`` wrap around."""
    plan = schedule or Schedule()
    if not 0 < batch <= len(queries):
        raise OptionError(f"batch {batch} with {len(queries):,} queries; expected 1 to {len(queries):,}: pass more queries")
    batches = [queries[start : start + batch] for start in range(0, len(queries) - batch + 1, batch)]
    prepared = {one.name: [one.prepare(block) for block in batches] for one in contestants}
    seconds: dict[str, list[float]] = {one.name: [] for one in contestants}
    order, rng, started = list(contestants), random.Random(plan.seed), time.perf_counter()
    with _no_garbage_collection():
        for turn in range(plan.rounds):
            if turn >= 3 and time.perf_counter() - started > plan.seconds:
                break
            rng.shuffle(order)
            first = turn * plan.calls
            for one in order:
                seconds[one.name] += _turn(one.call, prepared[one.name], first, plan, clock)
            if progress is not None:
                progress(turn + 1, plan.rounds)
    if progress is not None:
        progress(plan.rounds, plan.rounds)
    return [Timing(name, batch, values) for name, values in seconds.items()]


def _turn(call: Callable[[Any], Any], blocks: list[Any], first: int, plan: Schedule, clock: Clock) -> list[float]:
    time.sleep(plan.pause)
    awake, settled = time.perf_counter() + plan.pause, 0
    while settled < plan.settle or time.perf_counter() < awake:
        settled += 1
        clock(call, blocks[(first - settled) % len(blocks)])  # not those that are timed now, where there are others
    return [clock(call, blocks[turn % len(blocks)]) for turn in range(first, first + plan.calls)]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def claim_threads(threads: int) -> None:
    """Give every library ``threads`` threads; only those that are not imported yet take notice."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(threads)


def processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def pinned(threads: int) -> Iterator[list[int]]:
    """Hold this process, and threads that it starts meanwhile, on its first ``threads`` CPUs, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield []
        return
    before = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, before[:threads])
    try:
        yield before[:threads]
    finally:
        os.sched_setaffinity(0, before)


def environment(threads: int, **facts: Any) -> dict[str, Any]:
    """What a reader needs to judge the times: our commit, machine, versions, date. Names no host, user or folder."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "headlong": headlong.__version__,
        "commit": commit(),
        "cpu": _cpu_name(),
        "isa": _isa_flags(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": dict(_versions()),
        "waits": os.environ.get("OMP_WAIT_POLICY"),  # how OpenMP's threads wait changes what PyTorch and llama.cpp take
        **facts,
    }


def commit() -> str | None:
    """The commit of the checkout that this library runs from, with ``+`` where files differ; None where there is none."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "src" / "headlong").is_dir():
        return None
    try:
        head, changed = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "src", "csrc"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+" if changed else head


def _versions() -> Iterator[tuple[str, str]]:
    import importlib.metadata  # thirteen milliseconds, which `hl.tune` does not need
    for package in PACKAGES:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue


def _cpu_field(*names: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in fields if key.strip() in names), "")


def _cpu_name() -> str:
    return _cpu_field("model name") or platform.processor() or platform.machine()


def _isa_flags() -> list[str]:
    """Those of ``ISA_FLAGS`` that the system reports; empty where it reports none."""
    flags = set(_cpu_field("flags", "Features").split())
    return [flag for flag in ISA_FLAGS if flag in flags]


def as_run(record: Mapping[str, Any]) -> dict[str, Any]:
    """``record`` as a file of it begins: with what it is."""
    return {"format": FORMAT, "version": VERSION, **record}


def write_run(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """One JSON file; lists of entries take one line an entry, so that a changed run is a small difference."""
    _write(path, ",\n".join(_field(*item) for item in as_run(record).items()))


def keep(path: str | os.PathLike[str], table: str, record: Mapping[str, Any], name: str, command: str) -> None:
    """``record`` in the file of a page, which has a run for each ``name`` of each table; the others stay as they are."""
    found = read_run(path) if Path(path).is_file() else as_run({"tables": {}})
    found["tables"].setdefault(table, {})[name] = {"command": f"{command} --json {os.fspath(path)}", **record}
    tables = [
        _object(key, [_object(one, [_field(*item) for item in run.items()]) for one, run in runs.items()])
        for key, runs in sorted(found["tables"].items())
    ]
    _write(path, ",\n".join([_field("format", FORMAT), _field("version", VERSION), _object("tables", tables)]))


def _object(key: str, parts: Sequence[str]) -> str:
    return f"{json.dumps(key)}: {{\n" + ",\n".join(parts) + "\n}"


def _write(path: str | os.PathLike[str], text: str) -> None:
    target = Path(path)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        raise StoreError(f"{os.fspath(path)} cannot be written: {cause(error)}") from error


def _field(key: str, value: Any) -> str:
    def compact(part: Any) -> str:
        return json.dumps(part, separators=(",", ":"), allow_nan=False)

    if isinstance(value, list):
        return f'"{key}": [\n' + ",\n".join(map(compact, value)) + "\n]"
    return f'"{key}": {compact(value)}'


def read_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What :func:`write_run` or :func:`keep` wrote."""
    name = os.fspath(path)
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"{name} cannot be read: {cause(error)}") from error
    except ValueError as error:
        raise MalformedFileError(f"{name} is not JSON: {error}; expected a run that 'headlong bench -o' wrote") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or not {"rows", "tables", "runs"} & set(record):
        raise MalformedFileError(f"{name} is not a headlong run; expected a file that 'headlong bench -o' wrote")
    if record.get("version") != VERSION:
        raise MalformedFileError(f"{name} has version {record.get('version')}; this headlong reads {VERSION}: run it again")
    return record
