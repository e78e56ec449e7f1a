"""Every command through Typer's runner and through a process: what it says, one name for one thing, faults in one line."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.main import get_command
from typer.testing import CliRunner

import headlong as hl
from children import python, said
from headlong import inspection, integrations, margins, native
from headlong.bench.measure import read_run
from headlong.cli.app import as_spelt
from headlong.cli.main import app
from headlong.cli.refused_formats import as_hidden, as_layer, kind
from headlong.cli.terminal import bars, plain_lines, write_json
from headlong.demo import model as nextword
from headlong.errors import OptionError, ShapeError, StoreError
from headlong.progress import shown
from structured_layers import made


def call(*args: object) -> str:
    """What the command says, on stdout; it has to end well."""
    result = CliRunner().invoke(app, [*map(str, args), *([] if args[0] == "report" else ["--threads", "1"])])
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*args: object) -> str:
    """The one line on stderr of a command that ends with 2."""
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not re.search("━|^ *$", line)]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("headlong: ")
    return lines[0]


@pytest.mark.parametrize("source", ["layer.safetensors", "plain.safetensors", "named.safetensors:out.w:shift"])
@pytest.mark.parametrize("hidden", ["h.npy", "h.safetensors", "h.safetensors:hidden"])
def test_topk_prints_json_lines(files: Path, source: str, hidden: str) -> None:
    lines = [json.loads(line) for line in call("topk", files / source, files / hidden, "-k", 3, "--json").splitlines()]
    layer = hl.Layer.load(files / "layer.safetensors")
    top = hl.compile(layer, delta=0.0, threads=1).topk(np.load(files / "h.npy"), k=3)
    assert [line["row"] for line in lines] == list(range(70))
    assert [line["ids"] for line in lines] == top.ids.tolist()
    assert all(line["proved"] for line in lines)
    np.testing.assert_allclose([line["log_probs"] for line in lines], top.log_probs, atol=2e-2)


def test_topk_prints_a_table_and_says_what_it_left_out(files: Path) -> None:
    said = call("topk", files / "layer.safetensors", files / "h.npy", "-k", 2)
    assert "Engine(full" in said
    assert "50 more rows" in said
    assert said.count("proved") >= 20


@pytest.mark.parametrize("metric", ["ip", "cosine", "l2"])
@pytest.mark.parametrize("items", ["items.npy", "items.npz", "items.npz:items"])
def test_items_in_an_array_are_searched_by_a_metric(files: Path, items: str, metric: str, rng: np.random.Generator) -> None:
    """The nearest by float64, with their labels; in an .npz the same ids and scores."""
    rows, asked = rng.standard_normal((300, 16), np.float32), np.load(files / "h.npy")
    np.save(files / "items.npy", rows)
    np.savez(files / "items.npz", items=rows, other=rows[:2])
    (files / "names.txt").write_text("".join(f"item {i}\n" for i in range(300)))
    wide, theirs = asked.astype(np.float64), rows.astype(np.float64)
    scores = wide @ theirs.T
    if metric == "cosine":
        scores /= np.linalg.norm(wide, axis=1)[:, None] * np.linalg.norm(theirs, axis=1)
    if metric == "l2":
        scores = -np.square(wide[:, None] - theirs).sum(-1)
    best = np.argsort(-scores, axis=1)[:, :3]
    command = ("topk", files / items, files / "h.npy", "-k", 3, "--metric", metric, "--labels", files / "names.txt")
    lines = [json.loads(line) for line in call(*command, "--json").splitlines()]
    assert [line["ids"] for line in lines] == best.tolist()
    assert lines[7]["labels"] == [f"item {i}" for i in best[7]]
    values = np.abs(np.take_along_axis(scores, best, 1)) if metric == "l2" else np.take_along_axis(scores, best, 1)
    np.testing.assert_allclose([line["scores"] for line in lines], values, rtol=1e-4, atol=1e-5)
    said = call(*command, "-o", files / "found.npz")
    assert f"item {best[0, 0]}: {values[0, 0]:.4g}"[:-1] in said and "probability" not in said
    with np.load(files / "found.npz") as found:
        assert (found["ids"] == best).all() and found["scores"].shape == best.shape
        assert found["labels"].tolist() == [[f"item {i}" for i in row] for row in best]


def test_items_in_an_array_have_no_probabilities_unless_they_are_asked_for(files: Path) -> None:
    said = call("topk", files / "h.npy", files / "h.npy", "-k", 2, "-o", files / "found.npz")
    assert "class: logit" in said and "nats" not in said
    with np.load(files / "found.npz") as found:
        rows = np.load(files / "h.npy").astype(np.float64)
        assert (found["ids"][:, 0] == (rows @ rows.T).argmax(1)).all() and found["proved"].all()
    assert "class: probability" in call("topk", files / "h.npy", files / "h.npy", "-k", 2, "--eps", "0.01")


def test_one_vector_is_one_query_and_numbers_of_double_precision_are_said_to_be_rounded(files: Path) -> None:
    np.save(files / "one.npy", np.load(files / "h.npy")[0])
    np.save(files / "wide.npy", np.load(files / "h.npy").astype(np.float64))
    answered = CliRunner().invoke(app, ["topk", str(files / "wide.npy"), str(files / "one.npy"), "--json", "--threads", "1"])
    assert json.loads(answered.stdout)["ids"][0] in range(70)
    assert "one.npy has shape [16]: one vector" in answered.stderr
    assert "wide.npy is float64 and is read as float32" in answered.stderr


def test_logits_stand_where_log_probabilities_were_not_asked_for(files: Path) -> None:
    out = files / "ids.safetensors"
    call("compile", files / "layer.safetensors", "-o", out, "--no-log-probs")
    layer = files / "layer.safetensors"
    for asked in ((out,), (layer, "--eps", "inf")):
        command = ("topk", asked[0], files / "h.npy", "-k", 2, *asked[1:])
        said = call(*command)
        assert "class: logit" in said and not re.search("nats|%", said.split("class: logit")[1])
        lines = [json.loads(line) for line in call(*command, "--json").splitlines()]
        assert all(line["log_probs"] == [None, None] for line in lines)
        assert all(line["lse"] is line["error"] is None for line in lines)
        assert f"{lines[0]['ids'][0]}: {lines[0]['logits'][0]:.4g}" in said
    assert "class: probability" in call("topk", out, files / "h.npy", "--eps", "0.01")
    call("compile", layer, "-o", out, "--method", "svd", "--option", "width=8", "--calibration", files / "h.npy")
    said = call("topk", out, files / "h.npy", "-k", 2)
    assert "class: probability" in said and "open" in said, "estimates that nothing bounds are said, and that nothing does"


def test_options_win_over_names(files: Path) -> None:
    source = files / "named.safetensors"
    with_bias = call("topk", f"{source}:out.w:shift", files / "h.npy", "--json")
    assert call("topk", source, files / "h.npy", "--weight", "out.w", "--bias", "shift", "--json") == with_bias
    assert call("topk", f"{source}:out.w:", files / "h.npy", "--json") != with_bias


def test_compile_saves_an_engine_that_topk_reads(files: Path) -> None:
    out = files / "engine.safetensors"
    said = call(
        "compile", files / "layer.safetensors", "-o", out, "--method", "svd", "--option", "width=8", "--option", "rows=50",
        "--calibration", files / "h.npy",
    )  # fmt: skip
    assert "Engine(svd" in said
    last = said.splitlines()[-1]
    assert re.search(r"engine\.safetensors: [\d.]+ kB; read the layer .*s, compile, plans timed .*s, save .*s$", last)
    saved = hl.load(out)
    assert (saved.method.width, saved.method.rows) == (8, 50)
    assert "Engine(svd" in call("topk", out, files / "h.npy", "-k", 1)


def test_programs_are_told_what_was_compiled_and_searched(files: Path) -> None:
    """``--json`` prints one object, whatever is told as text without it."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
    out = files / "engine.safetensors"
    said = json.loads(call("compile", files / "layer.safetensors", "-o", out, "--method", "full", "--json"))
    assert said["bytes"] == out.stat().st_size and said["name"] == "full" and set(said["seconds"]) > {"save"}
    said = json.loads(call("truth", files / "h.npy", files / "h.npy", "-k", 2, "-o", files / "truth.arrow", "--json"))
    assert (said["queries"], said["k"], said["metric"]) == (len(np.load(files / "h.npy")), 2, "inner_product")


@pytest.mark.parametrize(("command", "more"), [("topk", ""), ("truth", "; the same command goes on from there")])
def test_who_stops_a_command_is_told_so_in_a_line(command: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"headlong.cli.commands.{command}.settled", stopped)
    result = CliRunner().invoke(app, [command, "a", "b", "-o", "c.arrow"])
    assert result.exit_code == 130
    assert result.stderr == f"headlong: stopped, no file is half-written{more}\n"


def test_ties_say_how_far_they_are(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.margins.pieces", lambda count, _: [slice(at, at + 1) for at in range(count)])
    told: list[tuple[int, int]] = []
    layer, rows = hl.Layer.load(files / "layer.safetensors"), np.load(files / "h.npy")[:3]
    with shown(lambda _: lambda done, total: told.append((done, total))):
        margins.margins(layer, rows)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_compile_can_leave_the_layer_out(files: Path) -> None:
    out = files / "engine.safetensors"
    call("compile", files / "layer.safetensors", "-o", out, "--method", "codes", "--without-layer")
    assert "layer" in fails("topk", out, files / "h.npy")
    assert hl.load(out, hl.Layer.load(files / "layer.safetensors")).method.name == "codes"


def test_inspect_tells_norms_widths_and_what_would_help(files: Path) -> None:
    page = files / "inspect.html"
    said = call("inspect", files / "layer.safetensors", files / "h.npy", "--html", page)
    parts = ("row norm", "interval of a code, nats", "rows scored for a proved top 10", "Singular values", "What would help")
    for part in parts:
        assert part in said
    assert "<svg" in page.read_text(encoding="utf-8")
    facts = json.loads(call("inspect", files / "layer.safetensors", "--json"))
    layer = hl.Layer.load(files / "layer.safetensors")
    np.testing.assert_allclose(facts["singular_values"], np.linalg.svd(layer.weight, compute_uv=False), rtol=1e-4)
    norms = np.linalg.norm(layer.weight, axis=1)
    np.testing.assert_allclose(facts["row_norms"], np.percentile(norms, facts["percentiles"]), rtol=1e-5)
    assert facts["synthetic_hidden"]
    (files / "facts.json").write_text(json.dumps(facts))
    call("report", files / "facts.json", "-o", page)
    assert "interval of a code, nats" in page.read_text(encoding="utf-8")
    assert 0 < facts["widths"][0] <= facts["widths"][-1]


def test_inspect_of_an_engine_says_what_it_reads(files: Path) -> None:
    engine = hl.compile(hl.Layer.load(files / "layer.safetensors"), "codes")
    engine.save(files / "engine.safetensors")
    said = call("inspect", files / "engine.safetensors")
    assert f"codes: {engine.reason}" in said
    assert json.loads(call("inspect", files / "engine.safetensors", "--json"))["reason"] == engine.reason


def test_bench_writes_runs_that_reports_read(files: Path) -> None:
    raw, page = files / "run.json", files / "bench.html"
    said = call(
        "bench", files / "plain.safetensors", files / "h.npy", "--batch", "1,2", "-k", 3, "--rounds", 1,
        "--only", "full; headlong, ids only; numpy fp32", "-o", raw, "--html", page,
    )  # fmt: skip
    assert "headlong, ids only" in said
    record = read_run(raw)
    assert {row["batch"] for row in record["rows"]} == {1, 2}
    assert record["layer"]["name"] == "plain.safetensors"
    assert str(files) not in raw.read_text()
    assert "<svg" in page.read_text(encoding="utf-8")
    assert "full" in call("bench", files / "plain.safetensors", "--rounds", 1, "--batch", 1, "--queries", 4, "--only", "full")


def test_the_demo_ends_with_a_table_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(**options: Any) -> nextword.Recipe:
        return recipe(vocab=800, dim=16, embedding=8, batch=64, negatives=64, steps=20, held_out=128, **options)

    recipe = nextword.Recipe
    monkeypatch.setattr(nextword, "Recipe", small)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("headlong.bench.rivals.dense_installed", lambda: ["numpy fp32"])
    said = call("demo", "--quick", "--html", tmp_path / "demo.html", "-o", tmp_path / "demo.json")
    parts = ("perplexity", "What comes next", "headlong, ids only", "Fastest dense product: ", "numpy fp32", "took no part")
    for part in parts:
        assert part in said
    assert "<svg" in (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert read_run(tmp_path / "demo.json")["settings"]["ways"] == ["cold", "loop"]


def test_a_package_that_is_not_there_is_one_line(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "headlong.integrations.harvest", raising=False)
    monkeypatch.delattr(integrations, "harvest", raising=False)
    assert "pip install 'headlong[transformers]'" in fails("harvest", files, files / "text.txt")


def process(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program itself, as the installed script starts it."""
    return python("from headlong.cli.main import app; app()", *args, **environment)


def test_the_program_answers_and_fails_as_the_runner_says(files: Path) -> None:
    good = process("topk", files / "layer.safetensors", files / "h.npy", "-k", 2, "--json", "--threads", 1)
    assert good.returncode == 0
    assert len(good.stdout.splitlines()) == 70
    bad = process("topk", "nowhere.safetensors", files / "h.npy")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("headlong: nowhere.safetensors")
    assert len(bad.stderr.splitlines()) == 1
    assert "Traceback" not in bad.stderr


def test_help_is_quick_and_names_every_command() -> None:
    shown = process("--help", COLUMNS="120")
    for name in ("demo", "inspect", "compile", "topk", "bench", "harvest"):
        assert name in shown.stdout
    heavy = "{'torch', 'numpy', 'headlong.compile', 'headlong._native'}"
    code = f"import sys, headlong.cli.main; print(*({heavy} & set(sys.modules)))"
    assert said(code) == ""


def test_a_closed_pipe_is_no_traceback(files: Path) -> None:
    code = "from headlong.cli.main import app; app()"
    command = [sys.executable, "-c", code, "topk", str(files / "layer.safetensors"), str(files / "h.npy"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()


def test_topk_on_a_device(interpreter: str, files: Path) -> None:
    asked = ("topk", files / "layer.safetensors", files / "h.npy", "-k", 3, "--json")
    there, here = (call(*asked, *more).splitlines() for more in (("--device", interpreter), ()))
    assert [json.loads(line)["ids"] for line in there] == [json.loads(line)["ids"] for line in here]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("topk", "nowhere.safetensors", "{}/h.npy"), "nowhere.safetensors"),
        (("topk", "{}/layer.safetensors", "nowhere.npy"), "nowhere.npy cannot be read"),
        (("topk", "{}/layer.safetensors", "{}/h.safetensors:none"), "has no tensor 'none'"),
        (("topk", "{}/layer.safetensors", "{}/layer.safetensors:lm_head.weight", "-k", "900"), "k is 900"),
        (("topk", "{}/layer.safetensors", "{}/layer.safetensors:lm_head.bias:x"), "cannot be read"),
        (("topk", "{}/layer.safetensors", "{}/text.npy"), "is not an .npy file"),
        (("topk", "{}/layer.safetensors", "{}/pickled.npy"), "pickled.npy holds Python objects, which are never read"),
        (("topk", "{}/pickled.npy", "{}/h.npy"), "pickled.npy holds Python objects, which are never read"),
        (("topk", "{}/layer.safetensors", "{}/words.npy"), "words.npy holds text (<U1), shape [2]; expected float16"),
        (("topk", "{}/words.npy", "{}/h.npy"), "words.npy holds text (<U1), shape [2]; expected float16"),
        (("topk", "{}/layer.safetensors", "{}/none.npy"), "none.npy has shape [0, 16]: no rows to answer"),
        (("topk", "{}/h.npy", "{}/h.npy", "--metric", "dot"), "--metric is 'dot'; choose from ip, inner_product, cosine, l2"),
        (("topk", "{}/h.npy", "{}/h.npy", "--metric", "l2", "--eps", "1"), "leave --eps out"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "--metric", "l2"), "has more than a matrix"),
        (("topk", "{}/engine.bin", "{}/h.npy", "--metric", "ip"), "does not take --metric"),
        (("topk", "{}/h.npy", "{}/h.npy", "--labels", "{}/two.json"), "has 1 lines; expected a label for each of 70 classes"),
        (("topk", "{}/h.npz:none", "{}/h.npy"), "has the arrays states, other; name one: "),
        (("topk", "{}/layer.safetensors", "{}/wrong.npy"), "expected hidden vectors [n, 16]"),
        (("topk", "{}/layer.safetensors", "{}/cube.npy"), "has shape [2, 3, 4]; expected hidden"),
        (("topk", "{}/text.npy", "{}/h.npy"), "is not an .npy file of numbers"),
        (("topk", "{}/named.safetensors", "{}/h.npy"), "has no tensor"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "--method", "magic"), "method is 'magic'"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "--threads", "0"), "--threads is 0"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "--eps", "-1"), "eps is -1"),
        (("inspect", "{}/nowhere"), "nowhere"),
        (("inspect", "{}/layer.safetensors", "--html", "{}/h.npy/where.html"), "cannot be written"),
        (("compile", "{}/layer.safetensors", "-o", "{}/h.npy/where.safetensors"), "cannot be written"),
        (("compile", "{}/layer.safetensors", "-o", "{}/e.foo"), "ends in .foo; expected a name that ends in .safetensors"),
        (("tune", "{}/layer.safetensors", "{}/h.npy", "-o", "{}/e.npz"), "expected a name that ends in .safetensors"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "-o", "{}/a.csv"), "ends in .json or .jsonl or .npz or .parquet"),
        (("ties", "{}/layer.safetensors", "{}/h.npy", "-o", "{}/a.npz"), "expected a name that ends in .json or .jsonl"),
        (("bench", "{}/layer.safetensors", "-o", "{}/a.html"), "expected a name that ends in .json"),
        (("inspect", "{}/layer.safetensors", "--html", "{}/a.json"), "expected a name that ends in .html"),
        (("truth", "{}/h.npy", "{}/h.npy", "-o", "{}/a.json"), "expected a name that ends in .parquet or .arrow"),
        (("report", "{}/two.json", "-o", "{}/a.pdf"), "expected a name that ends in .html"),
        (("compile", "{}/layer.safetensors", "-o", "{}/e", "--option", "width"), "expected name=value"),
        (("compile", "{}/layer.safetensors", "-o", "{}/e", "--method", "full", "--option", "x=1"), "full has no option 'x'"),
        (("bench",), "got none of them"),
        (("bench", "{}/layer.safetensors", "--synthetic", "9,9,1"), "got a layer and --synthetic"),
        (("bench", "{}/layer.safetensors", "--batch", "one"), "batch sizes 'one'"),
        (("bench", "{}/layer.safetensors", "--only", "nobody"), "there is no contestant 'nobody'"),
        (("demo", "--threads", "-3"), "--threads is -3"),
        (("compile", "{}/layer.safetensors", "-o", "{}/layer.safetensors"), "is a file that the command reads"),
        (("compile", "{}/layer.safetensors", "-o", "{}/plain.safetensors"), "was not written by this command"),
        (("tune", "{}/layer.safetensors", "{}/h.npy", "-o", "{}/plain.safetensors"), "was not written by this command"),
        (("inspect", "{}/layer.safetensors", "--verify", "-o", "{}/v.json"), "leave one of the two out"),
        (("compile", "{}/engine.bin", "-o", "{}/e"), "is a compiled engine"),
        (("bench", "{}/engine.bin"), "is a compiled engine"),
        (("topk", "{}/engine.bin", "{}/h.npy", "--method", "svd"), "does not take --method"),
        (("inspect", "{}/engine.bin", "{}/h.npy"), "does not take HIDDEN"),
        (("compile", "{}/layer.safetensors", "-o", "{}/e", "--option", "eps=3"), "eps is an option of compile"),
        (("inspect", "{}/layer.safetensors", "-k", "201"), "k is 201"),
        (("inspect", "{}/layer.safetensors", "{}/none.npy"), "hidden has no rows"),
        (("bench", "{}/layer.safetensors", "{}/none.npy"), "hidden has no rows"),
        (("bench", "{}/layer.safetensors", "--queries", "0"), "queries is 0"),
        (("bench", "{}/layer.safetensors", "--rounds", "-1"), "rounds is -1"),
        (("bench", "{}/layer.safetensors", "--only", "full", "--eps", "-1"), "eps is -1"),
        (("bench", "{}/layer.safetensors", "--batch", "1000", "--queries", "4"), "no batch size fits 4 queries"),
        (("bench", "{}/layer.safetensors", "--only", "full", "--calibration", "{}/wrong.npy"), "hidden vectors [n, 16]"),
        (("harvest", "{}", "{}/two.json", "--splits", "train,valid"), "is one text, and train, valid are 2"),
        (("harvest", "{}", "{}/two.json"), "is not a complete causal language model"),
        (("topk", "{}/layer.safetensors", "{}/h.npy:x"), "holds one array"),
        (("report", "{}/two.json"), "two.json: no result in there"),
        (("report", "{}/hollow.json"), "has the names of a result but not its content"),
        (("topk", "--bogus"), "No such option: --bogus"),
        (("topk", "{}/layer.safetensors"), "Missing argument 'HIDDEN'"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "-k", "x"), "Invalid value for '-k'"),
        (("nothing",), "No such command 'nothing'"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "--threads", "100000"), "--threads is 100000; expected 1 to 1024"),
        (("topk", "{}/layer.safetensors", "{}/h.npy", "-k", "900"), "-k is 900"),
        (("topk", "{}/layer.safetensors", "{}/h.npz"), "has the arrays states, other; name one: "),
        (("topk", "{}/layer.safetensors", "{}/layer.safetensors"), "holds a layer or an engine (layer)"),
        (("inspect", "{}/empty.gguf"), "empty.gguf is empty; expected a GGUF file"),
        (("inspect", "{}/text.gguf"), "text.gguf does not start as GGUF files do"),
        (("compile", "{}/layer.safetensors", "-o", "{}/e", "--delta", "2"), "--delta is 2"),
        (("bench", "{}/layer.safetensors", "{}/h.csv"), "is a table of text"),
        (("bench", "{}/layer.safetensors", "--way", "sideways"), "--way is sideways; expected cold or loop, or both"),
    ],
)
def test_bad_input_is_one_line_and_status_two_and_nothing_is_written(files: Path, args: tuple[str, ...], message: str) -> None:
    hl.compile(hl.Layer.load(files / "layer.safetensors"), threads=1).save(files / "engine.bin")
    for name, shape in (("none", (0, 16)), ("wrong", (2, 3)), ("cube", (2, 3, 4))):
        np.save(files / f"{name}.npy", np.zeros(shape, np.float32))
    np.save(files / "words.npy", np.array(["a", "b"]))
    np.save(files / "pickled.npy", np.array([{"a": 1}], object), allow_pickle=True)
    (files / "text.npy").write_text("no array, but long enough to have a header")
    (files / "two.json").write_text("[1, 2]")
    (files / "empty.gguf").touch()
    (files / "text.gguf").write_text("no model")
    (files / "hollow.json").write_text('{"rows": 3}')
    before = {path: path.read_bytes() for path in files.iterdir()}
    assert message in fails(*(arg.replace("{}", str(files)) for arg in args))
    assert {path: path.read_bytes() for path in files.iterdir()} == before


def broken_npy(kind: str, good: bytes) -> bytes:
    shape = b"(70, 16)"
    return {
        "zip": b"PK\x03\x04junk", "empty": b"", "cut": good[:200], "tokens": b"\x93NUMPY\x01\x00\x10\x00{((((((((((((((\n",
        "negative": good.replace(shape, b"(-3, 16)"), "huge": good.replace(shape + b", }        ", b"(9999999999, 16)}  "),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "empty", "cut", "tokens", "negative", "huge"])
def test_a_broken_npy_is_one_line(files: Path, kind: str) -> None:
    (files / "bad.npy").write_bytes(broken_npy(kind, (files / "h.npy").read_bytes()))
    message = "is empty; expected an .npy file" if kind == "empty" else "is not an .npy file of numbers"
    assert message in fails("topk", files / "layer.safetensors", files / "bad.npy")


@pytest.mark.parametrize("dtype", ["c8", "?", "M8[D]", "U1", "i8", [("a", "f4")]])
@pytest.mark.parametrize("command", [["inspect", "{}"], ["topk", "{}"], ["bench", "{}"]])
def test_every_command_refuses_the_same_types(files: Path, command: list[str], dtype: Any) -> None:
    np.save(files / "h.npy", np.zeros((3, 16), dtype))
    args = [part.replace("{}", str(files / "layer.safetensors")) for part in command]
    assert "expected float16, bfloat16, float32 or float64" in fails(*args, files / "h.npy")


def test_inspect_verifies_a_file(files: Path) -> None:
    engine = files / "engine.safetensors"
    hl.compile(hl.Layer.load(files / "layer.safetensors"), "codes").save(engine)
    for file in (engine, files / "layer.safetensors"):
        assert call("inspect", file, "--verify").strip().endswith("every byte is as it was written")
        damaged = bytearray(file.read_bytes())
        damaged[-5] ^= 1
        (files / "damaged.safetensors").write_bytes(damaged)
        assert "is damaged" in fails("inspect", files / "damaged.safetensors", "--verify")
    save_file({"weight": np.zeros((3, 4), np.float32)}, files / "foreign.safetensors")
    assert "carries no checksum" in fails("inspect", files / "foreign.safetensors", "--verify")


def test_inspect_of_fewer_classes_than_dimensions(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((5, 300), np.float32)
    _, singular = inspection.spectrum(hl.Layer(weight), lambda done, total: None)
    np.testing.assert_allclose(singular, np.linalg.svd(weight, compute_uv=False), rtol=1e-5)


@pytest.mark.filterwarnings("error")
def test_numbers_near_the_end_of_float32_pass_without_a_warning(files: Path) -> None:
    weight, hidden = np.random.default_rng(0).standard_normal((50, 16), np.float32), np.load(files / "h.npy")
    hl.Layer(weight * np.float32(1e37)).save(files / "huge.safetensors")
    np.save(files / "far.npy", hidden.astype(np.float64) * 1e300)
    np.save(files / "one.npy", hidden[0])
    assert json.loads(call("inspect", files / "huge.safetensors", "--json"))["row_norms"][-1] > 1e37
    assert "beyond float32's range" in fails("inspect", files / "layer.safetensors", files / "far.npy")
    assert "beyond float32's range" in fails("bench", files / "layer.safetensors", files / "far.npy")
    call("compile", files / "layer.safetensors", "-o", files / "e", "--method", "codes", "--calibration", files / "one.npy")


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"headlong {hl.__version__}\n")


def test_a_report_of_a_fault_finds_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """``--version --verbose``: level, threads, whose team, versions; and no word of who runs it."""
    monkeypatch.setenv("HEADLONG_ISA", "portable")
    monkeypatch.setenv("HEADLONG_THREADS", "1")
    first, *lines = CliRunner().invoke(app, ["--version", "--verbose"]).stdout.splitlines()
    told = dict(re.split(r"  +", line, maxsplit=1) for line in lines)
    assert first == f"headlong {hl.__version__}"
    assert told["level"].startswith(f"portable; best here {native.levels()[-1]}")
    assert told["threads"].startswith("1, of ") and "team: our own" in told["threads"]
    assert "HEADLONG_ISA=portable" in told["variables"]
    assert f"numpy {np.__version__}" in told["found"]
    assert str(Path.home()) not in "".join(lines)
    assert CliRunner().invoke(app, ["--verbose"]).exit_code == 2
    monkeypatch.setenv("HEADLONG_ISA", "abacus")
    said = CliRunner().invoke(app, ["--version", "--verbose"])
    assert said.exit_code == 0 and "level       none: HEADLONG_ISA is 'abacus'" in said.stdout and "not found" in said.stdout


def test_structured_layers_are_compiled_and_asked_as_what_they_are(tmp_path: Path) -> None:
    """A bands layer's file has a tensor called weight, which is no layer by itself."""
    case = made("bands", 16, 200)
    layer, hidden, engine = tmp_path / "bands.safetensors", tmp_path / "hidden.npy", tmp_path / "engine.safetensors"
    case.layer.save(layer)
    np.save(hidden, case.hidden)
    expected = hl.compile(case.layer, delta=0.0).topk(case.hidden, 3).ids
    assert "bands: the engine for layers of the kind 'bands'" in call("compile", layer, "-o", engine, "--delta", 0)
    for source in (layer, engine):
        lines = [json.loads(line) for line in call("topk", source, hidden, "-k", 3, "--json").splitlines()]
        assert [line["ids"] for line in lines] == expected.tolist()
    for command in (("tune", layer, hidden), ("inspect", layer), ("bench", layer)):
        assert "expected a layer of one matrix" in fails(*command)
    assert "whose tensors have fixed names: leave weight out" in fails("compile", f"{layer}:weight", "-o", engine)


def wait_for(pattern: str, text: Callable[[], str]) -> None:
    """Until a line matches; a busy machine may take its time."""
    end = time.monotonic() + 60
    while not re.search(f"(?m)^{pattern}$", text()):
        assert time.monotonic() < end, text()
        time.sleep(0.01)


def test_lines_of_progress_come_only_where_work_takes_time() -> None:
    out = io.StringIO()
    with plain_lines(0.02, out) as stage:
        move = stage("train")
        wait_for(r"headlong: train, \d+ s", out.getvalue)
        move(3, 10)
        wait_for(r"headlong: train, 3 of 10, \d+ s", out.getvalue)
    quick = io.StringIO()
    with plain_lines(5.0, quick) as stage:
        stage("quick")(1, 1)
    assert quick.getvalue() == ""


def test_where_stderr_is_no_terminal_there_are_lines_and_no_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headlong.cli.terminal.plain_lines.__wrapped__.__defaults__", (0.02, None))
    said: list[str] = []

    def text() -> str:
        said.append(capsys.readouterr().err)
        return "".join(said)

    with bars() as stage:
        stage("compile")
        wait_for(r"headlong: compile, \d+ s", text)


@pytest.mark.parametrize(
    ("name", "found", "layer", "hidden"),
    [
        ("h.npy", "npy", "", ""),
        ("h.npz", "npz", "", ""),
        ("h.csv", "csv", "is a table of text; a layer is a safetensors file", "numpy.loadtxt("),
        ("h.pkl", "pickle", "is a pickle, which is never read", "is a pickle, which is never read"),
        ("layer.safetensors", "", "", ""),
        ("nowhere", "", "", ""),
    ],
)
def test_a_file_that_is_something_else_is_known(files: Path, name: str, found: str, layer: str, hidden: str) -> None:
    path = str(files / name)
    assert kind(path) == found
    assert layer in as_layer(path) and bool(layer) == bool(as_layer(path))
    assert hidden in as_hidden(path) and bool(hidden) == bool(as_hidden(path))


def test_an_array_is_known_by_its_content(files: Path) -> None:
    (files / "array.bin").write_bytes((files / "h.npy").read_bytes())
    assert len(call("topk", files / "layer.safetensors", files / "array.bin", "--json").splitlines()) == 70


def test_a_transposed_weight_is_suspected(files: Path) -> None:
    line = fails("topk", files / "transposed.safetensors", files / "h.npy")
    assert "the layer's weight [16, 200] looks transposed" in line and "weight.T" in line
    engine = hl.compile(hl.Layer.load(files / "transposed.safetensors"))
    with pytest.raises(ShapeError, match=r"weight \[16, 200\] looks transposed"):
        engine.topk(np.load(files / "h.npy"), k=2)
    with pytest.raises(ShapeError, match="looks transposed"):
        hl.compile(hl.Layer.load(files / "transposed.safetensors"), calibration=np.load(files / "h.npy"))
    with pytest.raises(ShapeError) as other:
        engine.topk(np.ones((3, 5), np.float32), k=2)
    assert "transposed" not in str(other.value)


@pytest.mark.parametrize(("typed", "meant"), [("calib", "calibration"), ("thread", "threads"), ("block", "blocks")])
def test_a_near_option_is_suggested(typed: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"no option '{typed}'; did you mean {meant}=\?"):
        hl.compile(hl.Layer(np.ones((5, 4), np.float32)), "codes", **{typed: 1})  # type: ignore[call-overload]
    with pytest.raises(OptionError) as far:
        hl.compile(hl.Layer(np.ones((5, 4), np.float32)), "codes", zzz=1)
    assert "did you mean" not in str(far.value)


def test_options_are_named_as_they_are_typed() -> None:
    names = {"log_probs": "--log-probs", "k": "-k"}
    assert as_spelt("log_probs is 2; k=3 and delta", names) == "--log-probs is 2; -k=3 and delta"
    assert as_spelt("a --k is 2", {"k": "-k"}) == "a --k is 2"
    assert as_spelt("--option k is no option", {"k": "-k"}) == "--option k is no option"


@pytest.mark.parametrize("more", [0, 256, 512])
def test_a_safetensors_file_is_no_pickle_whatever_its_first_byte(more: int, tmp_path: Path) -> None:
    """The length of the header is its first bytes: 128 modulo 256 starts as pickles do."""
    rng = np.random.default_rng(0)
    hl.Layer(rng.standard_normal((20, 8), np.float32)).save(tmp_path / "plain.safetensors")
    raw = (tmp_path / "plain.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    longer = length + (128 - length) % 256 + more
    path = tmp_path / "layer.safetensors"
    path.write_bytes(longer.to_bytes(8, "little") + raw[8 : 8 + length] + b" " * (longer - length) + raw[8 + length :])
    assert path.read_bytes()[0] == 0x80 and kind(str(path)) == "" == as_layer(str(path))
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert result.exit_code == 0 and "20" in result.output, result.output


COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_one_meaning(name: str) -> None:
    spelt = {option: param for param in COMMANDS[name].params for option in param.opts}
    arguments = [param.name for param in COMMANDS[name].params if param.param_type_name == "argument"]
    silent = {"chat", "serve", "report", "harvest", "distill"}
    assert spelt["--json"].is_flag if "--json" in spelt else name in silent
    assert ("-o" in spelt) == ("--out" in spelt)
    assert "--out" in spelt or "--json" not in spelt
    assert "--hidden" not in spelt and ("hidden" not in arguments or arguments[1] == "hidden")
    assert "--threads" in spelt or name in {"report", "recall"}


def test_every_command_is_looked_at() -> None:
    assert {"topk", "bench", "harvest"} < COMMANDS.keys()


@pytest.mark.parametrize("name", ["topk", "inspect"])
def test_out_has_what_json_prints(files: Path, name: str) -> None:
    asked = [name, str(files / "layer.safetensors"), str(files / "h.npy"), "--threads", "1", "-o", str(files / "found.json")]
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, [*asked, *more])
        assert result.exit_code == 0, result.output
    assert (files / "found.json").read_text(encoding="utf-8") == result.stdout
    assert result.stdout.count("\n") == (70 if name == "topk" else 1)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "found.json"
    write_json(there, [{"old": 1}])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"found.json cannot be written: No space left"):
        write_json(there, [{"new": 2}] * 1000)
    assert json.loads(there.read_text(encoding="utf-8")) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["found.json"]


def test_tables_are_layers_and_hidden_vectors_and_answers(files: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'headlong[arrow]'")
    from pyarrow import parquet

    weight, hidden = np.asarray(hl.Layer.load(files / "layer.safetensors").weight), np.load(files / "h.npy")
    for name, rows in (("items", weight), ("queries", hidden)):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
        parquet.write_table(pa.table({"e": lists, "other": lists}), files / f"{name}.parquet")
    (files / "names.txt").write_text("".join(f"item {i}\n" for i in range(len(parquet.read_table(files / "items.parquet")))))
    answered = "-o", files / "answers.parquet", "--labels", files / "names.txt"
    call("topk", files / "items.parquet:e", files / "queries.parquet:other", "-k", 3, *answered)
    expected = hl.compile(hl.Layer(weight), delta=0.0).topk(hidden, k=3).ids
    found = parquet.read_table(files / "answers.parquet")
    assert found["ids"].to_pylist() == expected.tolist()
    assert found["labels"].to_pylist() == [[f"item {i}" for i in row] for row in expected]
    call("compile", files / "items.parquet:e", "-o", files / "items.safetensors", "--calibration", files / "queries.parquet:e")
    assert "the columns of vectors e, other" in fails("topk", files / "items.parquet", files / "h.npy")
    assert "no bias" in fails("compile", files / "items.parquet:e:b", "-o", files / "x.safetensors")
