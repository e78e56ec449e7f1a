"""Engines in files: what comes back is what was saved; what does not fit is refused before it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from adversarial import DTYPES, build
from headlong import native
from headlong.engines.base import Engine
from headlong.errors import (
    HeadlongError,
    InputError,
    KernelError,
    MalformedFileError,
    MissingTensorError,
    StoreError,
    VersionError,
    WrongLayerError,
)
from headlong.store import open_file, write_file


def engine(method: str, case: str = "random", dtype: str = "float32", **options: Any) -> tuple[Engine, np.ndarray]:
    made = build(case, dtype)
    return hl.compile(made.layer, method, eps=0.125, seed=9, **options), made.hidden


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["random", "softcap", "scaled", "one number", "duplicates"])
@pytest.mark.parametrize("method", ["full", "codes", "svd"])
def test_round_trip(tmp_path: Path, method: str, case: str, dtype: str) -> None:
    saved, hidden = engine(method, case, dtype)
    saved.save(tmp_path / "head.safetensors")
    loaded = hl.load(tmp_path / "head.safetensors")
    assert repr(loaded) == repr(saved)
    assert (loaded.promise, loaded.method, loaded.seed, loaded.reason) == (saved.promise, saved.method, 9, saved.reason)
    assert loaded.layer.link == saved.layer.link
    k = min(5, saved.layer.vocab)
    ours, theirs = saved.topk(hidden, k), loaded.topk(hidden, k)
    for name in ("ids", "logits", "proved"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    # threads add up the same terms in their own order
    np.testing.assert_allclose(ours.lse, theirs.lse, rtol=1e-12)
    np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-6, atol=1e-12)
    assert (saved.sample(hidden, 2, seed=1).ids == loaded.sample(hidden, 2, seed=1).ids).all()


def test_without_its_layer(tmp_path: Path) -> None:
    saved, hidden = engine("codes")
    path = tmp_path / "plan.safetensors"
    saved.save(path, layer=False)
    with pytest.raises(StoreError, match=r"saved without its layer; pass load\(path, layer=...\)"):
        hl.load(path)
    same = hl.Layer(saved.layer.weight.copy(), saved.layer.bias)
    assert (hl.load(path, same).topk(hidden, 3).ids == saved.topk(hidden, 3).ids).all()
    changed = saved.layer.weight.copy()
    changed[-1, -1] += 1e-3
    for other in (
        hl.Layer(changed, saved.layer.bias),
        hl.Layer(saved.layer.weight),
        hl.Layer(saved.layer.weight, saved.layer.bias, hl.SoftCap(3.0)),
        hl.Layer(saved.layer.weight[:-1], saved.layer.bias[:-1]),  # type: ignore[index]
    ):
        with pytest.raises(WrongLayerError, match=r"made for another layer \(777 x 65, float32\)"):
            hl.load(path, other)
    saved.save(path)
    with pytest.raises(WrongLayerError):
        hl.load(path, hl.Layer(changed, saved.layer.bias))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory of a mapped file is read from Linux")
def test_loading_reads_no_weights(tmp_path: Path) -> None:
    """Unverified, next to nothing of a layer of 128 MB comes into memory."""
    rng = np.random.default_rng(0)
    layer = hl.Layer(np.tile(rng.standard_normal((1000, 256)).astype(np.float32), (128, 1)))
    path = tmp_path / "head.safetensors"
    hl.compile(layer, "codes").save(path)
    loaded = hl.load(path, verify=False)
    assert loaded.layer.vocab == 128_000
    assert resident(path) < path.stat().st_size / 2
    float(np.asarray(loaded.layer.weight)[:, ::16].sum())
    assert resident(path) > 100 * 2**20, "what is read is seen"


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            here = line.endswith(str(path))
        elif here and first == "Rss:":
            total += 1024 * int(line.split()[1])
    return total


def edited(path: Path, change: Any) -> None:
    """Rewrite a saved engine after ``change(record, tensors, metadata)``."""
    file = open_file(path)
    tensors = {name: file.read(name).copy() for name in file.tensors}
    metadata = dict(file.metadata)
    record = json.loads(metadata["engine"])
    change(record, tensors, metadata)
    metadata["engine"] = json.dumps(record) if isinstance(record, dict) and "raw" not in record else "[]"
    write_file(path, tensors, metadata)


CHANGES: dict[str, tuple[Any, type[HeadlongError]]] = {
    "newer": (lambda r, t, m: m.update(version="2"), VersionError),
    "another format": (lambda r, t, m: m.update(format="headlong lawyer"), MalformedFileError),
    "no object": (lambda r, t, m: r.update(raw=1), MalformedFileError),
    "no method": (lambda r, t, m: r.pop("method"), MalformedFileError),
    "unknown method": (lambda r, t, m: r.update(method="magic"), MalformedFileError),
    "unknown option": (lambda r, t, m: r["options"].update(speed=9), MalformedFileError),
    "option out of range": (lambda r, t, m: r["options"].update(blocks=-3), MalformedFileError),
    "another vocab": (lambda r, t, m: r["layer"].update(vocab=778), MalformedFileError),
    "another dim": (lambda r, t, m: r["layer"].update(dim=64), MalformedFileError),
    "another dtype": (lambda r, t, m: r["layer"].update(dtype="float16"), MalformedFileError),
    "a foreign link": (lambda r, t, m: r["layer"].update(link={"kind": "table"}), MalformedFileError),
    "negative eps": (lambda r, t, m: r["promise"].__setitem__(0, -1), MalformedFileError),
    "no eps": (lambda r, t, m: r["promise"].__setitem__(0, 0), MalformedFileError),
    "certainly wrong": (lambda r, t, m: r["promise"].__setitem__(1, 2), MalformedFileError),
    "endless norms": (lambda r, t, m: t["norms"].__setitem__(0, np.inf), MalformedFileError),
    "negative norms": (lambda r, t, m: t["norms"].__setitem__(0, -1), MalformedFileError),
    "a mean that is none": (lambda r, t, m: t["plan.codes.mean"].__setitem__(5, np.nan), MalformedFileError),
    "negative bounds": (lambda r, t, m: t["plan.codes.bounds"].__setitem__((0, 1), -1), MalformedFileError),
    "endless bounds": (lambda r, t, m: t["plan.codes.bounds"].__setitem__((0, 1), np.inf), MalformedFileError),
    "negative loss": (lambda r, t, m: r["codes"].update(lost=-1), MalformedFileError),
    "segments beyond dim": (lambda r, t, m: r["codes"].update(segments=[[0, 66, 8, 1]]), MalformedFileError),
    "segments backwards": (lambda r, t, m: r["codes"].update(segments=[[0, 70, 8, 1], [70, 65, 8, 1]]), MalformedFileError),
    "seven bits": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(2, 7), MalformedFileError),
    "fewer bits": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(2, 3), MalformedFileError),
    "three planes": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(3, 3), MalformedFileError),
    "no segments": (lambda r, t, m: r["codes"].update(segments=[]), MalformedFileError),
    "no seed": (lambda r, t, m: r.update(seed=-1), MalformedFileError),
    "short tiles": (lambda r, t, m: t.update({"plan.codes.tiles": t["plan.codes.tiles"][:-1]}), MalformedFileError),
    "short rotation": (lambda r, t, m: t.update({"plan.codes.rotation": t["plan.codes.rotation"][:-1]}), MalformedFileError),
    "wide mean": (lambda r, t, m: t.update({"plan.codes.mean": t["plan.codes.mean"].astype(np.float32)}), MalformedFileError),
    "short norms": (lambda r, t, m: t.update({"norms": t["norms"][:-1]}), MalformedFileError),
    "short bias": (lambda r, t, m: t.update({"layer.bias": t["layer.bias"][:-1]}), MalformedFileError),
    "float64 weight": (lambda r, t, m: t.update({"layer.weight": t["layer.weight"].astype(np.float64)}), MalformedFileError),
    "no centre": (lambda r, t, m: t.pop("plan.codes.centre"), MissingTensorError),
    "no tiles": (lambda r, t, m: t.pop("plan.codes.tiles"), MissingTensorError),
}


@pytest.mark.parametrize("change", CHANGES)
def test_contradictions_are_refused(tmp_path: Path, change: str) -> None:
    saved, _ = engine("codes")
    path = tmp_path / "head.safetensors"
    saved.save(path)
    edit, error = CHANGES[change]
    edited(path, edit)
    with pytest.raises(error):
        hl.load(path)


def test_damaged_weights_and_codes_end_in_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are too large to look at on load; whatever they hold, the executors stay in their memory."""
    saved, hidden = engine("codes")
    path = tmp_path / "head.safetensors"
    saved.save(path)
    best = saved.topk(hidden, 1).ids

    def damage(record: Any, tensors: Any, metadata: Any) -> None:
        tensors["layer.weight"][best] = np.nan
        tensors["plan.codes.tiles"][3] = 255

    edited(path, damage)
    for level in native.levels():
        monkeypatch.setenv("HEADLONG_ISA", level)
        damaged = hl.load(path, threads=1)
        found = damaged.topk(hidden, 5)
        assert found.ids.shape == (len(hidden), 5) and not np.isnan(found.logits).any()
        damaged.lse(hidden, eps=1e-6)
        damaged.sample(hidden, n=2, seed=1, top_p=0.9)


def test_load_opens_an_engine_or_a_layer_and_says_which(tmp_path: Path) -> None:
    saved, _ = engine("codes")
    path = tmp_path / "head.safetensors"
    saved.save(path)
    assert repr(hl.load(path)).startswith("Engine(")
    with pytest.raises(MalformedFileError, match="holds a headlong engine; expected a layer: headlong.load opens engines, too"):
        hl.structured.load_layer(path)
    saved.layer.save(path)
    found = hl.load(path)
    assert repr(found).startswith("Layer(") and found.checksum() == saved.layer.checksum()
    with pytest.raises(InputError, match="holds a layer; expected an engine where layer= is given"):
        hl.load(path, layer=saved.layer)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="checksum"):
        hl.load(path)
    assert hl.load(path, verify=False).vocab == saved.layer.vocab


def test_every_level_opens_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, hidden = engine("codes")
    saved.save(tmp_path / "head.safetensors")
    for level in native.levels():
        monkeypatch.setenv("HEADLONG_ISA", level)
        loaded = hl.load(tmp_path / "head.safetensors", threads=1)
        assert f"kernel {level}" in repr(loaded)
        assert (loaded.topk(hidden, 3).ids == saved.topk(hidden, 3).ids).all()
    monkeypatch.setenv("HEADLONG_ISA", "none")
    with pytest.raises(KernelError):
        hl.load(tmp_path / "head.safetensors")
