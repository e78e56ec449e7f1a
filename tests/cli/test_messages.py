"""What the command line says: where the work is, whose queries were asked, what a file really is, options as they are typed."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import headlong as hl
from headlong.cli.app import as_spelt
from headlong.cli.main import app
from headlong.cli.refused_formats import as_hidden, as_layer, kind
from headlong.cli.terminal import bars, plain_lines
from headlong.errors import OptionError, ShapeError


@pytest.fixture(autouse=True)
def settled_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands claim threads for their whole process; monkeypatch puts them back."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HEADLONG_THREADS"):
        monkeypatch.setenv(name, "1")


@pytest.fixture
def files(tmp_path: Path, rng: np.random.Generator) -> Path:
    weight, hidden = rng.standard_normal((200, 16), np.float32), rng.standard_normal((70, 16), np.float32)
    hl.Layer(weight).save(tmp_path / "layer.safetensors")
    hl.Layer(np.ascontiguousarray(weight.T)).save(tmp_path / "transposed.safetensors")
    np.save(tmp_path / "h.npy", hidden)
    np.savez(tmp_path / "h.npz", states=hidden, other=hidden[:3])
    np.savetxt(tmp_path / "h.csv", hidden, delimiter=",", header="a,b", comments="")
    (tmp_path / "h.pkl").write_bytes(b"\x80\x04junk")
    return tmp_path


def refused(*args: object) -> str:
    result = CliRunner().invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    return line


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
        ("h.npy", "npy", "is an .npy array; headlong.Layer(numpy.load(", ""),
        ("h.npz", "npz", "['states']).save('layer.safetensors')", "with states, other; save one array: numpy.save("),
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


def test_the_commands_say_so(files: Path) -> None:
    assert "is an .npy array" in refused("inspect", files / "h.npy")
    assert "is an .npz with states, other" in refused("topk", files / "layer.safetensors", files / "h.npz")
    assert "is a table of text" in refused("bench", files / "layer.safetensors", files / "h.csv")
    (files / "array.bin").write_bytes((files / "h.npy").read_bytes())
    good = CliRunner().invoke(app, ["topk", str(files / "layer.safetensors"), str(files / "array.bin"), "--json"])
    assert good.exit_code == 0 and len(good.stdout.splitlines()) == 70, "an array is known by its content"


def test_a_transposed_weight_is_suspected(files: Path) -> None:
    line = refused("topk", files / "transposed.safetensors", files / "h.npy")
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


def test_options_are_named_as_they_are_typed(files: Path) -> None:
    names = {"log_probs": "--log-probs", "k": "-k"}
    assert as_spelt("log_probs is 2; k=3 and delta", names) == "--log-probs is 2; -k=3 and delta"
    assert as_spelt("a --k is 2", {"k": "-k"}) == "a --k is 2"
    assert as_spelt("--option k is no option", {"k": "-k"}) == "--option k is no option"
    out = files / "e.safetensors"
    assert "--delta is 2" in refused("compile", files / "layer.safetensors", "-o", out, "--delta", 2)
    assert "-k is 900" in refused("topk", files / "layer.safetensors", files / "h.npy", "-k", 900)
    line = refused("bench", files / "layer.safetensors", "--way", "sideways")
    assert "--way is sideways; expected cold or loop, or both" in line


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


def test_small_things_that_a_new_user_meets(files: Path) -> None:
    layer = files / "layer.safetensors"
    assert "--threads is 100000; expected 1 to 1024" in refused("topk", layer, files / "h.npy", "--threads", 100_000)
    (files / "empty.gguf").touch()
    assert "empty.gguf is empty; expected a GGUF file" in refused("inspect", files / "empty.gguf")
    (files / "text.gguf").write_text("no model")
    assert "text.gguf does not start as GGUF files do" in refused("inspect", files / "text.gguf")
    assert "layer.safetensors holds a layer or an engine (layer); expected hidden vectors" in refused("topk", layer, layer)
