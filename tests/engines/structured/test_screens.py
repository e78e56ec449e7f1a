"""Screens over a trained layer: what they read is exact, what they miss is measured, and their files are others' files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import headlong as hl
from headlong.cli.main import app
from headlong.errors import MalformedFileError, OptionError, ShapeError
from headlong.layers.centroid_head import CENTROIDS, ORDERING, read_centroid_head, write_centroid_head
from headlong.layers.screens import ScreenLayer
from headlong.layers.structured import load_layer
from headlong.previews.screens import balanced, equal_clusters, knapsack, learned_screen, top_ids, upper_end
from headlong.previews.shortlist import shortlist
from headlong.store import open_file, write_file


def clustered(bias: bool = True, vocab: int = 320, dim: int = 12) -> tuple[hl.Layer, np.ndarray]:
    """Rows in eight bundles, and hidden vectors that each point at one."""
    rng = np.random.default_rng(4)
    centres = 3 * rng.normal(size=(8, dim))
    weight = centres.repeat(vocab // 8, 0) + 0.5 * rng.normal(size=(vocab, dim))
    hidden = centres[rng.integers(0, 8, 1500)] + 0.5 * rng.normal(size=(1500, dim))
    offset = 0.1 * rng.normal(size=vocab).astype(np.float32) if bias else None
    return hl.Layer(weight.astype(np.float32), offset), hidden


def exact(layer: hl.Layer, hidden: np.ndarray) -> np.ndarray:
    z = hidden @ layer.weight.astype(np.float64).T
    return z if layer.bias is None else z + layer.bias


@pytest.mark.parametrize("kind", ["learned", "clusters"])
def test_a_screen_answers_for_its_candidates(kind: str, tmp_path: Path) -> None:
    layer, hidden = clustered()
    screen = learned_screen(layer, hidden, 8, 60) if kind == "learned" else equal_clusters(layer, hidden, 16)
    engine = hl.compile(screen, threads=1)
    some, z = hidden[:40], exact(layer, hidden[:40])
    ids = engine.candidates(some)
    top, k = engine.topk(some, k=10), 10
    for b in range(40):
        mine = ids[b][ids[b] >= 0]
        order = mine[np.argsort(-z[b, mine], kind="stable")][:k]
        assert (top.ids[b, : len(order)] == order).all()
        assert top.lse[b] == pytest.approx(np.log(np.exp(z[b, mine]).sum()), abs=1e-9)
    assert not top.proved.any() and np.isinf(top.error).all()
    assert screen.missed is not None
    assert engine.promise == hl.Promise(math.inf, screen.missed[1], screen.missed[1])
    wanted = top_ids(layer, hidden, screen.missed[0])
    got = engine.topk(hidden, k=screen.missed[0]).ids
    missed = np.mean([set(a) != set(b) for a, b in zip(wanted, got, strict=True)])
    assert missed <= screen.missed[1] < 0.2
    assert engine.topk(hidden, k=5).cost.rows.mean() < layer.vocab / 2
    one = engine.topk(some, k=3, allowed=np.arange(0, 320, 2))  # a mask reads its classes as they are
    assert (one.ids[:, 0] == 2 * z[:, ::2].argmax(1)).all()
    drawn = engine.sample(some, n=50, seed=1)
    assert all(np.isin(drawn.ids[b], ids[b]).all() for b in range(40)) and not drawn.proved.any()
    scored = engine.log_prob(some, np.arange(320)[None].repeat(40, 0))
    np.testing.assert_allclose(scored.logits, z, atol=1e-9)
    engine.save(tmp_path / "screen.safetensors")
    again = hl.load(tmp_path / "screen.safetensors")
    assert again.promise == engine.promise and (again.topk(some, k=10).ids == top.ids).all()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"min_p": 1e-4}, {"top_k": 200}], ids=str)
def test_a_screen_has_its_say_in_every_draw(cut: dict[str, float], temperature: float) -> None:
    layer, hidden = clustered()
    engine = hl.compile(equal_clusters(layer, hidden, 16), probes=2, threads=1)
    some = 0.05 * hidden[:40]  # so that a class beyond the screen is as likely as one before it
    drawn, mine = engine.sample(some, 20, temperature, seed=3, **cut), engine.candidates(some)
    for b in range(40):
        assert set(drawn.ids[b].tolist()) <= set(mine[b].tolist())


def test_more_probes_read_more_and_promise_nothing() -> None:
    layer, hidden = clustered()
    screen = equal_clusters(layer, hidden, 16, probes=2)
    few, all_ = hl.compile(screen, threads=1), hl.compile(screen, threads=1, probes=16)
    assert all_.promise == hl.Promise(math.inf, 1.0, 1.0) and few.promise.delta_ids < 1
    assert (all_.topk(hidden[:50], k=1).ids[:, 0] == exact(layer, hidden[:50]).argmax(1)).all()
    assert (few.topk(hidden[:50], k=1).cost.rows < 320).all()
    with pytest.raises(OptionError, match="probes=17; expected 1 to the 16 clusters"):
        hl.compile(screen, probes=17)


def test_a_packed_screen_gives_the_same_ids() -> None:
    layer, hidden = clustered()
    screen = learned_screen(layer, hidden, 8, 60)
    packed = hl.compile(screen.packed(), threads=1)
    assert (packed.topk(hidden[:60], k=10).ids == hl.compile(screen, threads=1).topk(hidden[:60], k=10).ids).all()
    with pytest.raises(OptionError, match="only one probe can be packed"):
        equal_clusters(layer, hidden, 16, probes=2).packed()


def test_clusters_are_balanced() -> None:
    rng = np.random.default_rng(0)
    member = balanced(rng.normal(size=(1003, 6)).astype(np.float32), 50, rng)
    sizes = np.bincount(member, minlength=50)
    assert sizes.max() <= 21 and sizes.min() >= 1


def test_the_knapsack_takes_the_commonest_within_its_budget() -> None:
    best = np.array([0, 0, 0, 1])
    wanted = np.array([[5, 1], [5, 1], [5, 2], [7, 3]])
    sets = knapsack(best, wanted, 2, 9, 1.75)  # 0.75 for each class of cluster 0, 0.25 of cluster 1
    assert np.flatnonzero(sets[0]).tolist() == [5] and np.flatnonzero(sets[1]).tolist() == [3, 7]


def test_the_upper_end_is_the_binomial_one() -> None:
    assert upper_end(0, 1000) == pytest.approx(1 - 1e-3 ** (1 / 1000), abs=1e-9)
    assert 0.05 < upper_end(50, 1000) < 0.08 and upper_end(7, 7) == 1.0


def test_a_shortlist_is_a_token_map(tmp_path: Path) -> None:
    layer, hidden = clustered()
    kept = shortlist(layer, hidden, 100)
    assert kept.kept_mass > 100 / 320 and 0 < kept.kept_top1 <= 1
    kept.save(tmp_path / "map.safetensors")
    file = open_file(tmp_path / "map.safetensors")
    assert (np.arange(100) + file.read("d2t") == file.read("token_ids")).all()
    assert (np.flatnonzero(file.read("t2d")) == kept.ids).all()
    with pytest.raises(OptionError, match="size=0"):
        shortlist(layer, hidden, 0)


def test_the_centroid_layout_is_read_and_written(tmp_path: Path) -> None:
    layer, hidden = clustered(bias=False)
    screen = equal_clusters(layer, hidden, 20, probes=4)
    write_centroid_head(screen, tmp_path)
    again = read_centroid_head(tmp_path)
    assert again.probes == 4 and (again.ids == screen.ids).all() and (again.centroids == screen.centroids).all()
    file = open_file(tmp_path / "model.safetensors")
    assert file.read(CENTROIDS).shape == (20, 12) and file.read(ORDERING).shape == (320,)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_centroids"] == 20 and config["centroid_intermediate_top_k"] == 4
    tensors = {name: np.array(file.read(name)) for name in file.tensors}
    tensors[ORDERING][0] = tensors[ORDERING][1]
    write_file(tmp_path / "model.safetensors", tensors)
    with pytest.raises(MalformedFileError, match="names a class twice"):
        read_centroid_head(tmp_path)
    with pytest.raises(OptionError, match="no bias"):
        write_centroid_head(equal_clusters(*clustered(), 20), tmp_path)
    with pytest.raises(OptionError, match="disjoint clusters of equal size"):
        write_centroid_head(learned_screen(layer, hidden, 8, 60), tmp_path)


def test_the_command_line_builds_them(tmp_path: Path) -> None:
    layer, hidden = clustered(bias=False)
    layer.save(tmp_path / "layer.safetensors")
    np.save(tmp_path / "h.npy", hidden.astype(np.float32))
    words = ["shortlist", str(tmp_path / "layer.safetensors"), str(tmp_path / "h.npy"), "--threads", "1", "-o"]
    runner = CliRunner()
    for kind, more in (("tokens", ["--size", "50"]), ("learned", ["--clusters", "8", "--budget", "50"]),
                       ("clusters", ["--clusters", "16"]), ("centroid-head", ["--clusters", "20"])):  # fmt: skip
        result = runner.invoke(app, [*words, str(tmp_path / kind), "--kind", kind, *more])
        assert result.exit_code == 0, result.output
    assert isinstance(load_layer(tmp_path / "learned"), ScreenLayer)
    assert read_centroid_head(tmp_path / "centroid-head").clusters == 20
    result = runner.invoke(app, [*words, str(tmp_path / "x"), "--kind", "nothing"])
    assert result.exit_code == 2 and "expected tokens, learned" in result.stderr


def test_bad_screens_are_named() -> None:
    layer, hidden = clustered()
    with pytest.raises(ShapeError, match="calibration has shape"):
        learned_screen(layer, hidden[:5], 8)
    with pytest.raises(OptionError, match="budget=0"):
        learned_screen(layer, hidden, 8, 0)
    ids, starts = np.arange(320), np.array([0, 160, 320])
    with pytest.raises(ShapeError, match=r"expected \[clusters, 13\]"):
        ScreenLayer(layer, np.ones((2, 12), np.float32), ids, starts)
    with pytest.raises(OptionError, match="probes=3"):
        ScreenLayer(layer, np.ones((2, 13), np.float32), ids, starts, 3)
    with pytest.raises(OptionError, match="cluster 1 has no class"):
        ScreenLayer(layer, np.ones((2, 13), np.float32), ids, np.array([0, 320, 320]))
