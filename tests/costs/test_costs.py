"""What a machine costs decides the plan: planted costs move the choice, odd measurements and damaged files do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.costs import BUILT_IN, TERMS, Costs, here, repeated, settled
from headlong.costs import cache as costs_cache
from headlong.costs.built_in import HALF
from headlong.costs.measured import TIMED, terms_of
from headlong.engines.method_choice import FEW, choose
from headlong.errors import OptionError
from headlong.previews.few_bits import energy_of, filled, sampled
from headlong.previews.first_look import best_look
from headlong.previews.look_costs import LISTED, Masses, Size, masses_of, narrowed, shared, spent_on, together
from headlong.previews.whitening import whiten
from plans import decaying

IDS = hl.Promise(math.inf, 0.0, 0.0)
TIMES = {
    "memory": 0.04, "cache": 0.0162, "half a batch": 1e5, "batch": 1.74e5, "half a longer batch": 2e5,
    "longer batch": 3.36e5, "half unpacked": 5e4, "unpacked": 7.6e4,
    "short row": 58.0, "long row": 200.0, "ids": 1e5, "proof": 2.1e5, "level": 4250.0, "call": 11730.0,
}  # fmt: skip
"""Of a machine that is slower than the built-in one throughout."""
MEASURED = settled(terms_of(TIMES), "measured on this machine")
compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="the reference takes what is built in")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test finds the costs for itself, of as many threads as the built-in ones are of."""
    monkeypatch.setenv("HEADLONG_THREADS", str(BUILT_IN.threads))
    costs_cache._found.cache_clear()
    yield
    costs_cache._found.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder, and measurements that are planted and counted."""
    monkeypatch.delenv("HEADLONG_COSTS")
    monkeypatch.setattr(costs_cache, "folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(costs_cache, "trials", lambda threads: dict(TIMES))
    monkeypatch.setattr(repeated.Neighbours, "share", lambda self: 0.0)
    return tmp_path / "cache" / costs_cache.FILE


def counted(monkeypatch: pytest.MonkeyPatch, times: Callable[[], dict[str, float]]) -> list[int]:
    """Plants measurements; one entry more of what is returned for each that is asked for."""
    asked: list[int] = []

    def trials(threads: int) -> dict[str, float]:
        asked.append(threads)
        return times()

    monkeypatch.setattr(costs_cache, "trials", trials)
    return asked


def looked_at(costs: Costs, promise: hl.Promise = IDS, power: float = 2.0) -> int:
    """Bytes of each class in the look that is chosen."""
    layer, hidden = decaying(20_000, 256, power)
    wide = hidden.astype(np.float64)
    basis = whiten(layer.weight, wide)
    rows = sampled(layer, basis)
    width, bits = best_look(layer, basis, rows, wide, promise, 0.25, costs=costs)
    if bits is not None:
        spent = filled(energy_of(rows), bits)
        return sum(sum(planes) * (stop - start) // 8 for start, stop, planes in spent)
    return layer.dim if width is None else width


def dearer(times: float, *names: str) -> Costs:
    return BUILT_IN._replace(**{name: times * getattr(BUILT_IN, name) for name in names})


def test_slow_memory_reads_fewer_bytes_and_dear_rows_leave_fewer_open() -> None:
    bet = hl.Promise(0.01, 1e-3, 0.0)
    usual = looked_at(BUILT_IN, bet)
    slow, gathers = looked_at(dearer(8, "memory", "cache", "product"), bet), looked_at(dearer(8, "row", "gathered"), bet)
    assert slow < usual < gathers


def test_dear_passes_keep_the_look_that_needs_none() -> None:
    assert looked_at(dearer(16, "level"), power=0.5) == 256
    layer = hl.Layer(np.zeros((3 * FEW // 100, 100), np.float16))
    assert choose(layer, IDS)[0] == "cascade"


@compiled_code
def test_a_machine_of_dear_passes_reads_larger_layers_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    layer = hl.Layer(np.zeros((3 * FEW // 100, 100), np.float16))
    for times, expected in ((16, "full"), (1, "cascade"), (0.25, "cascade")):
        (tmp_path / f"{times}.json").write_text(json.dumps({"level": times * BUILT_IN.level}))
        monkeypatch.setenv("HEADLONG_COSTS", str(tmp_path / f"{times}.json"))
        assert choose(layer, IDS)[0] == expected
    small = hl.Layer(np.zeros((FEW // 150, 100), np.float16))
    assert choose(small, IDS)[0] == "cascade" and "30,000 or more" in choose(small, IDS)[1]


def test_a_batch_counts_beside_a_single_query() -> None:
    """A look that leaves much open wins for one query and loses for eight: what is read further is each query's own."""
    layer = hl.Layer(np.zeros((60_000, 512), np.float16))
    short, whole = Size(128, 0, 400, True), Size(536, 0, None, False)
    alone, eight = (
        [spent_on(layer, look, np.array([open_]), batch, BUILT_IN) for look, open_ in ((short, 4e5), (whole, 1e3))]
        for batch in (1, 8)
    )
    assert alone[0] < alone[1] and eight[0] > eight[1]


def test_few_bits_lose_where_unpacking_takes_longer_than_reading() -> None:
    """As it does for each query of a batch, which reads a part of the bytes."""
    layer = hl.Layer(np.zeros((60_000, 512), np.float16))
    few, whole = Size(148, 512, None, False), Size(512, 0, None, False)
    unpacked, products = dearer(8, "unpacked"), dearer(0.5, "product")
    for costs, batch, sooner in ((BUILT_IN, 1, few), (products, 8, whole), (unpacked, 1, whole)):
        other = whole if sooner is few else few
        assert spent_on(layer, sooner, 0.0, batch, costs) < spent_on(layer, other, 0.0, batch, costs)


def test_what_one_query_of_a_batch_opens_all_are_multiplied_with() -> None:
    """So each pays for what any of eight opens, and for no more than all classes."""
    few, more, all_ = (shared(60_000, opened, 400, BUILT_IN) for opened in (10, 1000, 60_000))
    one = 400 * LISTED * BUILT_IN.product + BUILT_IN.bounded + BUILT_IN.row / 16
    assert few == pytest.approx(8 * 10 * one, rel=1e-3)
    assert few < more < 100 * few and all_ <= 60_000 * one


def test_what_a_proof_opens() -> None:
    """Nothing where the gaps fit; the widest first; a class of a wide radius by its exponential, not by its radius."""
    masses, narrow = Masses(np.full(500, 2.0), np.full(500, 1e-3), 0.0), np.full(500, 0.05)
    assert narrowed(masses, narrow, narrow, 0.2) == (0.0, 0.0)
    wide = np.where(np.arange(500) < 50, 6.0, 0.05)
    opened, scored = narrowed(masses, wide, np.full(500, 0.01), 0.2)
    assert 90 < opened <= 100 and scored == 0
    assert narrowed(masses, np.full(500, 2.0), None, 0.2)[1] > 700
    assert narrowed(masses, wide, None, 1e-6) == (0.0, 1000.0)


def test_heavy_classes_are_counted_one_by_one() -> None:
    """And none is lost, whatever the number of classes."""
    for vocab in (1, 9, 10, 11, 300, 40_000):
        shares = np.sort(np.random.default_rng(vocab).pareto(1.2, vocab))[::-1]
        shares /= shares.sum()
        masses, ranks = masses_of(shares, min(10, vocab))
        assert masses.classes.sum() == vocab - min(10, vocab) and len(ranks) == len(masses.each)
        np.testing.assert_allclose(masses.exact + masses.classes @ masses.each, 1.0, rtol=1e-12)
        np.testing.assert_array_equal(masses.each[:200], shares[10:210][: len(masses.each)])
        assert (np.diff(ranks) > 0).all() and (ranks < vocab).all()


def test_a_proof_of_all_together_opens_the_heaviest() -> None:
    """Fewer the shorter their joint error is, and none where that is known for no plan."""
    shares = 1 / np.arange(1, 20_001.0)
    masses, _ = masses_of(shares / shares.sum(), 10)
    radius, fine = np.full(len(masses.each), 0.5), np.full(len(masses.each), 0.01)
    opened = [together(masses, radius, fine, length, 0.05)[0] for length in (0.01, 1.0, 4.0, 16.0)]
    assert opened[0] == 0 and opened == sorted(opened) and opened[3] > opened[1] > 0
    assert math.isinf(together(masses, radius, fine, math.inf, 0.05)[0])


@given(st.dictionaries(st.sampled_from(TERMS), st.floats() | st.text(max_size=2) | st.none()))
def test_only_plausible_measurements_are_believed(measured: dict[str, Any]) -> None:
    found = settled(measured, "measured")
    for name in TERMS:
        usual, value = getattr(BUILT_IN, name), measured.get(name)
        if isinstance(value, float) and usual / 16 <= value <= 16 * usual:
            assert value / 1.42 <= getattr(found, name) <= 1.42 * value
        else:
            assert getattr(found, name) == usual and (name in found.source or found == BUILT_IN)


@given(st.floats(0.71, 1.41), st.sampled_from(TERMS))
def test_noise_changes_nothing(times: float, name: str) -> None:
    """On a machine like the one that the costs were built in on."""
    found = settled({one: getattr(BUILT_IN, one) * (times if one == name else 1) for one in TERMS}, "x")
    assert found._replace(source=BUILT_IN.source) == BUILT_IN


@compiled_code
def test_measured_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = here()
    assert first == MEASURED and first != BUILT_IN
    (key,) = json.loads(cache.read_text())
    assert native.isa() in key and hl.__version__ in key
    assert [file.name for file in cache.parent.iterdir()] == [costs_cache.FILE]
    costs_cache._found.cache_clear()
    monkeypatch.setattr(costs_cache, "trials", lambda threads: pytest.fail("measured again"))
    assert here() == first


@compiled_code
def test_other_threads_are_another_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADLONG_THREADS", threads)
        here()
    assert len(json.loads(cache.read_text())) == 2


@compiled_code
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"x": 1}', "\x00\xff", "[" * 100_000, None])
def test_a_damaged_cache_is_measured_anew(cache: Path, text: str | None) -> None:
    cache.parent.mkdir()
    found = json.dumps({"other": 1}) if text is None else text
    cache.write_text(found, encoding="utf-8")
    assert here() == MEASURED
    kept_now = json.loads(cache.read_text())
    assert {"times": TIMES, "measurements": 2, "settled": True} in kept_now.values()
    assert ("other" in kept_now) == (text is None)


@compiled_code
@pytest.mark.parametrize(
    "damaged",
    [{}, [], {"times": dict.fromkeys(TIMED, "x")}, {"times": TIMES | {"row": 1}, "measurements": 0},
     {"times": TIMES | {"memory": -1.0}}, {"times": {"memory": 0.04}}, {"measurements": "many"}],
)  # fmt: skip
def test_entries_of_the_cache_that_are_no_times(cache: Path, damaged: Any) -> None:
    here()
    (key,) = json.loads(cache.read_text())
    whole = {"times": TIMES, "measurements": 2, "settled": True}
    cache.write_text(json.dumps({key: {**whole, **damaged} if damaged else damaged}))
    costs_cache._found.cache_clear()
    assert here() == MEASURED and json.loads(cache.read_text())[key] == whole


@compiled_code
def test_a_disturbed_measurement_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that was slow in some of its parts, nor several that were slow alike beside others."""
    taken = iter([{**TIMES, "half unpacked": 7e4, "memory": 0.09}, TIMES, TIMES])
    monkeypatch.setattr(costs_cache, "trials", lambda threads: next(taken))
    assert here() == MEASURED and next(taken, None) is None
    cache.unlink()
    slow = {name: 2.5 * time for name, time in TIMES.items()}
    busy, asked = [0.5], counted(monkeypatch, lambda: slow if busy[0] else TIMES)
    monkeypatch.setattr(repeated.Neighbours, "share", lambda self: busy[0])
    for process in (1, 2):
        costs_cache._found.cache_clear()
        found = here()
        assert "while it was busy, 3 times" in found.source if process == 1 else "6 times" in found.source
        assert found.memory > MEASURED.memory and here() == found and len(asked) == 3 * process
    busy[0] = 0.0
    costs_cache._found.cache_clear()
    assert here() == MEASURED and len(asked) == 8
    costs_cache._found.cache_clear()
    assert here() == MEASURED and len(asked) == 8


def test_what_a_busy_machine_says_is_half_believed() -> None:
    """Times that another program doubled leave the plans as they are."""
    twice, eight = ({name: by * getattr(BUILT_IN, name) for name in TERMS} for by in (2, 8))
    assert settled(twice, "busy", 2, HALF) == BUILT_IN._replace(source="busy")
    assert settled(twice, "alone", 2).memory == 2 * BUILT_IN.memory
    assert settled(eight, "busy", 2, HALF).memory == 4 * BUILT_IN.memory


@compiled_code
def test_a_machine_that_is_never_alone_is_measured_so_often(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted(monkeypatch, lambda: TIMES)
    monkeypatch.setattr(repeated.Neighbours, "share", lambda self: 1.0)
    for _ in range(repeated.MOST):
        costs_cache._found.cache_clear()
        here()
    assert len(asked) == repeated.MOST


@compiled_code
def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    assert here() == MEASURED


@compiled_code
def test_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert here() == BUILT_IN
    file = tmp_path / "mine.json"
    monkeypatch.setenv("HEADLONG_COSTS", str(file))
    file.write_text(json.dumps({"row": 99, "source": "elsewhere"}))
    assert here() == BUILT_IN._replace(row=99, source="from mine.json")
    for text in ("{", "[]", '{"rows": 3}', '{"row": -1}', '{"row": true}', '{"row": NaN}'):
        file.write_text(text)
        costs_cache._found.cache_clear()
        with pytest.raises(OptionError, match=r"HEADLONG_COSTS is .*mine\.json.*expected 'default', or a JSON file"):
            here()


@compiled_code
def test_trials_measure_every_term() -> None:
    """They run and give numbers; which ones is the machine's business, and not tested."""
    found = costs_cache.trials(1)
    assert tuple(found) == TIMED and all(isinstance(time, float) and time > 0 for time in found.values())
    assert set(terms_of(found)) == set(TERMS)


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(costs_cache.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert costs_cache.folder() == tmp_path / "headlong"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert costs_cache.folder() == Path.home() / ".cache" / "headlong"
    monkeypatch.setattr(costs_cache.sys, "platform", "darwin")
    assert costs_cache.folder() == Path.home() / "Library" / "Caches" / "headlong"
    monkeypatch.setattr(costs_cache.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert costs_cache.folder() == tmp_path / "headlong"


def test_a_saved_plan_stays_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = decaying(4000, 96, 3.0)
    engine = hl.compile(layer, calibration=hidden, eps=math.inf)
    engine.save(tmp_path / "head.safetensors")
    (tmp_path / "costs.json").write_text(json.dumps({"row": 500.0, "memory": 0.002}))
    monkeypatch.setenv("HEADLONG_COSTS", str(tmp_path / "costs.json"))
    loaded = hl.load(tmp_path / "head.safetensors")
    assert [level.layout for level in loaded.plan.levels] == [level.layout for level in engine.plan.levels]
    assert loaded.reason == engine.reason
