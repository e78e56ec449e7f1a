"""Whatever is passed to a public name is read, or refused by an exception of the library: no foreign traceback.

What was refused for its kind can be caught as TypeError or ValueError, and a file as OSError, as by callers of NumPy and torch.
"""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import headlong
from headlong import teacher
from headlong.engines.method import METHODS, option_names
from headlong.errors import HeadlongError
from headlong.integrations import faiss as faiss_api
from headlong.integrations import offline
from headlong.structured import load_layer

torch = pytest.importorskip("torch", reason="torch is an extra")

VOCAB, DIM = 60, 8
RNG = np.random.default_rng(0)
LAYER = headlong.Layer(RNG.standard_normal((VOCAB, DIM), np.float32))
ENGINE = headlong.compile(LAYER)
HIDDEN = RNG.standard_normal((3, DIM), np.float32)


class Refusing:
    """What raises whenever it is looked at."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("not to be read")

    __index__ = __float__ = __iter__ = __len__ = __array__


ODD: list[Any] = [
    None, True, -1, 2**70, 1.5, float("nan"), float("inf"), 1j, "x", "", b"x", "a\0b", (), {}, set(), object(), Refusing(),
    int, Decimal("1.5"), pathlib.Path("nowhere"), range(3), [1, "a"], [[1], [2, 3]], [None], [Refusing()], 10**400,
    np.array(3), np.zeros((0, DIM), np.float32), np.zeros((2, 0)), np.array(["a"]), np.array([None]),
    np.datetime64("2020-01-01"), np.ma.masked_array(HIDDEN, HIDDEN > 0),
    HIDDEN.astype(complex), np.zeros(3, [("a", int)]), np.full((3, DIM), np.nan),
    np.zeros((3, DIM), np.int64), torch.tensor(2), torch.zeros(3, DIM, requires_grad=True),
    torch.zeros(3, DIM, dtype=torch.bfloat16),
    torch.zeros(3, DIM, device="meta"), torch.zeros(3, DIM).to_sparse(), torch.zeros(3, DIM, dtype=torch.float8_e4m3fn),
    torch.nn.Linear(DIM, VOCAB), torch.nn.Embedding(VOCAB, DIM), LAYER, ENGINE,
]  # fmt: skip

Door = Callable[[Any], Any]
CAUGHT = (ValueError, TypeError, OSError, ImportError, NotImplementedError)
"""What callers of NumPy and torch catch: every refusal is one of them, too."""


def index() -> faiss_api.IndexFlatIP:
    found = faiss_api.IndexFlatIP(DIM)
    found.add(LAYER.weight)
    return found


def named(call: Callable[..., Any], *given: Any, names: tuple[str, ...]) -> dict[str, Door]:
    """Each argument of ``call`` by its name, after what is given."""
    title = getattr(call, "__qualname__", str(call))
    return {f"{title}({name}=)": lambda value, name=name: call(*given, **{name: value}) for name in names}


def doors(engine_file: str, layer_file: str) -> dict[str, Door]:
    """Every public name and argument, but for those of heads."""
    rows, ids = ("eps", "allowed", "exclude"), np.zeros((3, 1), int)
    draws = ("n", "temperature", "top_k", "top_p", "min_p", "seed", "position", "allowed")
    compiling = ("method", "eps", "delta", "log_probs", "calibration", "adapt", "threads", "seed", "device")
    found: dict[str, Door] = {
        "load": headlong.load, "Layer": headlong.Layer, "Layer.load": headlong.Layer.load, "load_layer": load_layer,
        "Layer.save": LAYER.save, "Engine.save": ENGINE.save, "compile": headlong.compile,
        "topk": ENGINE.topk, "lse": ENGINE.lse, "entropy": ENGINE.entropy, "sample": ENGINE.sample,
        "log_prob": lambda value: ENGINE.log_prob(value, ids), "ids": lambda value: ENGINE.log_prob(HIDDEN, value),
        "tune": lambda value: headlong.tune(value, HIDDEN), "tune hidden": lambda value: headlong.tune(LAYER, value),
        "with_rows": ENGINE.with_rows, "without": ENGINE.without, "link": headlong.SoftCap,
        "distill": lambda value: teacher.distill(value, HIDDEN, "taught"),
        "read": lambda value: list(teacher.read_teacher(value)),
        "distill hidden": lambda value: teacher.distill(ENGINE, value, "taught"),
        "search": lambda value: index().search(value, 2), "range": lambda value: index().range_search(value, 0.0),
        "add": lambda value: index().add(value), "train": lambda value: index().train(value),
        "remove": lambda value: index().remove_ids(value), "merge": lambda value: index().merge_from(value),
        "reconstruct": index().reconstruct, "many": index().reconstruct_batch, "run": index().reconstruct_n,
        "write": lambda value: faiss_api.write_index(index(), value),
        "written": lambda value: faiss_api.write_index(value, "out"),
        "read index": faiss_api.read_index, "clone": faiss_api.clone_index, "normalize": faiss_api.normalize_L2,
        "map": faiss_api.IndexIDMap, "Flat": faiss_api.IndexFlatL2,
        "Scorer": offline.Scorer, "scored": offline.Scorer(ENGINE),
        "column": lambda value: offline.Scorer(ENGINE)({"hidden": value}),
        **named(headlong.load, engine_file, names=("layer", "threads", "verify", "mapped")),
        **named(headlong.Layer.load, layer_file, names=("weight", "bias", "link")),
        **named(headlong.Layer, LAYER.weight, names=("bias", "link", "copy")),
        **named(headlong.compile, LAYER, names=compiling),
        **named(ENGINE.topk, HIDDEN, names=("k", *rows)), **named(ENGINE.log_prob, HIDDEN, ids, names=rows),
        **named(ENGINE.lse, HIDDEN, names=rows), **named(ENGINE.sample, HIDDEN, names=draws),
        **named(index().search, HIDDEN, names=("k",)), **named(index().search, HIDDEN, 2, names=("params", "D", "I")),
        **named(index().range_search, HIDDEN, names=("thresh",)), **named(index().reconstruct, 0, names=("x",)),
        **named(faiss_api.index_factory, DIM, names=("description",)),
        **named(faiss_api.index_factory, DIM, "Flat", names=("metric",)),
    }  # fmt: skip
    for name, method in METHODS.items():
        for option in option_names(method):
            found[f"{name}.{option}"] = lambda value, name=name, option=option: headlong.compile(LAYER, name, **{option: value})
    return found


def heads() -> dict[str, Door]:
    from headlong.heads import HEADS, build_head

    found: dict[str, Door] = {"build_head": lambda value: build_head(value, DIM, VOCAB)}
    target = torch.zeros(3, dtype=torch.long)
    for name, kind in HEADS.items():
        made, title = kind(DIM, VOCAB), f"{name} head"  # type: ignore[call-arg]
        found |= {
            f"{title}, dim": lambda value, kind=kind: kind(value, VOCAB),
            f"{title}, vocab": lambda value, kind=kind: kind(DIM, value),
            f"{title}, weight": lambda value, kind=kind: kind(DIM, VOCAB, value),
            f"{title}, hidden": lambda value, made=made: made(value, target), f"{title}, log_prob": made.log_prob,
            f"{title}, target": lambda value, made=made: made(torch.zeros(3, DIM), value),
        }  # fmt: skip
        options = [one.name for one in inspect.signature(kind).parameters.values() if one.kind is one.KEYWORD_ONLY]
        for option in options:
            found[f"{title}, {option}"] = lambda value, kind=kind, option=option: kind(DIM, VOCAB, **{option: value})
    return found


@pytest.fixture
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.chdir(tmp_path)
    ENGINE.save("engine.safetensors")
    LAYER.save("layer.safetensors")
    return "engine.safetensors", "layer.safetensors"


def foreign(found: dict[str, Door]) -> list[str]:
    """What raised something else: the door, the value, the exception."""
    faults = []
    for name, door in found.items():
        for value in ODD:
            try:
                door(value)
            except Exception as error:
                if isinstance(error, HeadlongError) and isinstance(error, CAUGHT):
                    continue
                faults.append(f"{name}, {type(value).__name__}: {type(error).__name__}: {error}"[:200])
    return faults


@pytest.mark.filterwarnings("ignore")
def test_no_door_raises_what_is_foreign(files: tuple[str, str]) -> None:
    assert not foreign(doors(*files))


@pytest.mark.filterwarnings("ignore")
def test_nor_do_heads() -> None:
    assert not foreign(heads())


def test_a_name_of_a_file_is_text(files: tuple[str, str]) -> None:
    for door in (headlong.load, headlong.Layer.load, LAYER.save, ENGINE.save, faiss_api.read_index):
        with pytest.raises(TypeError, match="path is a NoneType; expected the name of a file"):
            door(None)
    assert headlong.load(files[0].encode()).layer.vocab == headlong.Layer.load(files[1].encode()).vocab == VOCAB
    with pytest.raises(OSError, match="nowhere cannot be read"):
        headlong.load("nowhere")


def test_switches_may_be_numpys(files: tuple[str, str]) -> None:
    assert headlong.load(files[0], verify=np.False_).layer.vocab == VOCAB  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="verify is 1; expected True or False"):
        headlong.load(files[0], verify=1)  # type: ignore[arg-type]


