"""The k nearest items of each query, proved: items are read piece by piece, and what was found is kept beside the answer.

::

    for each piece of rows:    an engine that proves ids, its k + 1 best, their scores in twice float64's precision
                               more of them, then all, where a row that was not scored could be among the best so far
    merged                     by score, equal ones by id: the same for pieces of any size

A run that was killed goes on at the piece where it was. ``parts`` divide the rows among machines; ``run`` calls a function for
each part's number, as ``map`` does.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import headlong
from headlong.arrays import Array, as_numpy
from headlong.dtypes import HIDDEN, Doubles, Ids
from headlong.engines.arguments import checked_hidden
from headlong.engines.contract import Verbs
from headlong.errors import DtypeError, MalformedFileError, ShapeError, StoreError
from headlong.number_checks import choice, file_name, whole
from headlong.store import open_file, write_file
from headlong.tables import answers, arrow, files
from headlong.tables.files import Rows
from headlong.truth.scores import METRICS, Piece, piece_of, reach, scored

FORMAT = "headlong truth"
HELD = 1 << 27
"""Bytes of the rows of a piece, where their number is not given."""
BATCH = 256
"""Queries that are asked at once."""
MANY = 2048
"""Queries for which compiling codes of a piece takes less time than it saves."""
SPARE = (0, 8, 64)
"""Rows that are fetched beyond the k + 1 best: of products none is needed; where float32 rounds some, some, then more."""

Progress = Callable[[int, int], None]
Run = Callable[[Callable[[int], "Best"], Iterable[int]], Iterable["Best"]]


class Truth(NamedTuple):
    """``ids [n, k]`` (-1 where there are fewer items), ``scores [n, k]``, best first, and ``margin [n]``: how much nearer the
    k-th is than the next one, infinite where there is none, 0 where they tie.

    Scores are inner products, cosines or squared distances. Ids are proved: none that is missing has a score as good, and of
    items whose scores are one float64 number the smaller ids are taken.
    """

    ids: Ids
    scores: Doubles
    margin: Doubles


class Best(NamedTuple):
    """The k + 1 best so far: ``ids, scores [n, k + 1]``, greater is nearer; -1 and -inf where there are fewer."""

    ids: Ids
    scores: Doubles


class Call(NamedTuple):
    """What is asked; ``items`` as it was given, so that a worker elsewhere opens it for itself."""

    items: Any
    queries: Array
    k: int
    metric: str
    rows: int | None
    threads: int | None


def truth(
    items: Any,
    queries: Any,
    k: int = 100,
    *,
    metric: str = "inner_product",
    out: str | os.PathLike[str] | None = None,
    parts: int = 1,
    run: Run = map,
    rows: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Truth:
    """The ``k`` nearest ``items [m, dim]`` of each of ``queries [n, dim]``, proved, with their scores and margins.

    ``items``    a table's path, ``(path, column)``, an Arrow table or an array; files are streamed, some ``rows`` at a time
    ``queries``  likewise; they and their answers are held
    ``metric``   "inner_product", "cosine" or "l2" (squared distances)
    ``out``      the table to write, .parquet or .arrow; while it is not there, what was found so far is kept beside it, and
                 the same call goes on from that
    ``parts``, ``run``  ranges of the items, and what calls a function for the number of each: several machines do by Ray
    ``progress`` is called with how many items are done, and of how many
    """
    given = source(queries, "queries")
    rows_of_queries = next(iter(given.blocks(0, given.length, max(1, given.length))), np.empty((0, given.dim), np.float32))
    opened = source(items, "items")
    whole(k, "k", 1, 2**31 - 2)
    if opened.length < 1 or opened.dim < 1:
        raise ShapeError(f"{opened.name} has {opened.length} rows of {opened.dim} numbers; expected items to search")
    checked_hidden(rows_of_queries, opened.dim, "queries", opened.length)
    choice(metric, "metric", METRICS)
    whole(parts, "parts", 1, opened.length)
    if out is not None:
        answers.check_name(out)
    call = Call(_elsewhere(items), rows_of_queries, k, metric, None if rows is None else whole(rows, "rows", 1, 2**40), threads)
    kept = None if out is None else os.path.abspath(file_name(out, "out"))
    some = partial(searched, call, parts=parts, kept=kept, progress=progress if run is map else None)
    best = merged(list(run(some, range(parts))), k + 1)
    found = _told(best, k, metric)
    if kept is not None:
        about = {"metric": metric, "k": k, "items": opened.length, "dim": opened.dim, "format": FORMAT}
        answers.write(kept, answers.columns(found._asdict()).replace_schema_metadata({FORMAT: json.dumps(about)}))
        for number in range(parts):
            _state_of(kept, number, parts).unlink(missing_ok=True)
    return found


def searched(call: Call, number: int, *, parts: int = 1, kept: str | None = None, progress: Progress | None = None) -> Best:
    """The best of part ``number`` of the items, from where an earlier run of the same call was."""
    items = source(call.items, "items")
    start, stop = items.length * number // parts, items.length * (number + 1) // parts
    state = None if kept is None else _state_of(kept, number, parts)
    about = {
        "format": FORMAT, "metric": call.metric, "k": str(call.k), "items": f"{items.stamp} {items.length} x {items.dim}",
        "queries": f"{call.queries.dtype} {hashlib.sha256(np.ascontiguousarray(call.queries).view(np.uint8).data).hexdigest()}",
    }  # fmt: skip
    best, at = _kept(state, about, start)
    if best is None:
        shape = (len(call.queries), call.k + 1)
        best = Best(np.full(shape, -1, np.int64), np.full(shape, -np.inf))
    step = call.rows or max(1 << 12, HELD // (4 * items.dim))
    for block in items.blocks(at, stop, step) if at < stop else ():
        best = _with(best, piece_of(block, call.metric, at), at, call)
        at += len(block)
        del block  # before the next is read
        if state is not None:
            write_file(state, best._asdict(), {**about, "done": str(at)})
        if progress is not None:
            progress(at - start, stop - start)
    return best


def merged(found: list[Best], count: int) -> Best:
    """The ``count`` best of all, equal scores by id."""
    ids = np.concatenate([one.ids for one in found], axis=1)
    scores = np.concatenate([one.scores for one in found], axis=1)
    order = np.lexsort((np.where(ids < 0, np.iinfo(np.int64).max, ids), -scores), axis=1)[:, :count]
    return Best(np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1))


def source(given: Any, name: str) -> Rows:
    """Rows to be streamed: of a path, ``(path, column)``, what hands out Arrow's arrays, or an array."""
    if isinstance(given, Rows):
        return given
    path, column = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    path = path[0] if isinstance(path, tuple) and len(path) == 1 else path
    if isinstance(path, str | os.PathLike):
        text = file_name(path, name)
        if not files.kind(text):
            raise MalformedFileError(f"{text} is no table that is known; expected Parquet, Arrow, Lance, or PostgreSQL's COPY")
        return files.opened(text, column)
    rows = arrow.vectors(path, column, name) if arrow.is_arrow(path) else as_numpy(given, name)
    if rows.ndim != 2:
        raise ShapeError(f"{name} has shape {list(rows.shape)}; expected rows [n, dim]")
    if rows.dtype not in HIDDEN:
        raise DtypeError(f"{name} is {rows.dtype}; expected float32, float16 or bfloat16: convert it first")
    digest = hashlib.sha256(np.ascontiguousarray(rows[:: max(1, len(rows) // 4096)]).view(np.uint8).data)
    return files.of_array(rows, name, f"{rows.dtype} {digest.hexdigest()}")


def read_truth(path: str | os.PathLike[str]) -> Truth:
    """What :func:`truth` wrote."""
    found = answers.read(path)
    if any(name not in found for name in Truth._fields):
        raise MalformedFileError(f"{os.fspath(path)} has the columns {', '.join(found)}; expected {', '.join(Truth._fields)}")
    return Truth(*(found[name] for name in Truth._fields))


def _with(best: Best, piece: Piece, first: int, call: Call) -> Best:
    """The best of those so far and of a piece whose first row is number ``first``."""
    method = {"method": "codes", "blocks": False} if len(call.queries) >= MANY else {"method": "full"}
    engine = headlong.compile(piece.layer, delta=0.0, log_probs=False, threads=call.threads, **method)
    parts = [slice(start, start + BATCH) for start in range(0, len(call.queries), BATCH)]
    found = [_batch(Best(best.ids[at], best.scores[at]), engine, piece, first, call.queries[at], call.k) for at in parts]
    if not found:
        return best
    return Best(np.concatenate([one.ids for one in found]), np.concatenate([one.scores for one in found]))


def _batch(best: Best, engine: Verbs, piece: Piece, first: int, queries: Array, k: int) -> Best:
    wide, count = queries.astype(np.float64), len(piece.rows)
    before, found = best, Best(best.ids.copy(), best.scores.copy())
    open_: Ids = np.arange(len(queries))
    for spare in SPARE[:1] if piece.metric == "inner_product" else SPARE[1:]:
        fetched = min(k + 1 + spare, count)
        top = engine.topk(wide[open_], k=fetched)
        some = Best(before.ids[open_], before.scores[open_])
        farthest = reach(piece, wide[open_], top.logits, some.scores[:, -1])
        row, place = np.nonzero(farthest >= some.scores[:, -1:])
        new = Best(np.full(top.ids.shape, -1, np.int64), np.full(top.ids.shape, -np.inf))
        there = top.ids[row, place]
        new.scores[row, place] = scored(wide[open_[row]], piece.rows[there], piece.metric)
        new.ids[row, place] = there + first
        better = merged([some, new], k + 1)
        found.ids[open_], found.scores[open_] = better
        # An engine's order of products is that of the numbers themselves, and k + 1 of every piece are enough.
        if piece.metric == "inner_product" or fetched == count:
            return found
        beyond = reach(piece, wide[open_], top.logits[:, -1:], better.scores[:, -1])[:, 0]
        open_ = open_[beyond >= better.scores[:, -1]]
        if not len(open_):
            return found
    for row in open_:
        every = scored(np.broadcast_to(wide[row], piece.rows.shape), piece.rows, piece.metric)
        nearest = np.argsort(-every, kind="stable")[: k + 1]
        own = Best(before.ids[row][None], before.scores[row][None])
        one = merged([own, Best(nearest[None] + first, every[None, nearest])], k + 1)
        found.ids[row], found.scores[row] = one.ids[0], one.scores[0]
    return found


def _elsewhere(items: Any) -> Any:
    """What another process opens, whatever its folder is."""
    path, *more = items if isinstance(items, tuple) else (items,)
    return (os.path.abspath(path), *more) if isinstance(path, str | os.PathLike) and len(more) < 2 else items


def _told(best: Best, k: int, metric: str) -> Truth:
    sign = -1.0 if metric == "l2" else 1.0
    with np.errstate(invalid="ignore"):
        margin = np.where(np.isneginf(best.scores[:, k]), math.inf, best.scores[:, k - 1] - best.scores[:, k])
    return Truth(best.ids[:, :k].copy(), sign * best.scores[:, :k], margin)


def _state_of(out: str, number: int, parts: int) -> Path:
    return Path(f"{out}.part-{number:05d}-of-{parts:05d}")


def _kept(state: Path | None, about: dict[str, str], start: int) -> tuple[Best | None, int]:
    """What an earlier run of the call found, and how far it came; StoreError where it is of another call."""
    if state is None or not state.exists():
        return None, start
    file = open_file(state, mapped=False)
    if file.metadata.get("format") != FORMAT:
        raise StoreError(f"{state} is in the way; name another file to write, or move it away")
    file.check_call(about)
    return Best(file.read("ids"), file.read("scores")), int(file.metadata["done"])
