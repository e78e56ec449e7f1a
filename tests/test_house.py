"""The house rules: who may import whom, what `import headlong` costs, and what is public."""

from __future__ import annotations

import ast
import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import headlong
from children import said
from headlong.errors import an

HOME = Path(headlong.__file__).parent
STANDARD = sys.stdlib_module_names - {"pickle", "cPickle", "marshal", "shelve", "dbm"}  # no pickle is ever read
ARRAYS = {"numpy", "ml_dtypes"}
LEFTWARD = (
    "errors", "number_checks", "cached_attribute", "randomness", "dtypes", "question", "answers", "arrays", "packed_rows",
    "links", "promise", "plan", "store", "tables", "layers", "progress",
)  # fmt: skip
CORE = {*LEFTWARD, *ARRAYS}
DOOR = "headlong"
"""The public names: `import headlong`, or `from headlong import Layer`."""
ENGINES = {f"engines/{family}" for family in ("methods", "structured", "mixture", "device", "saved")}
READING = {*CORE, "number_checks", "native", "encode", "encode/blocks", "engines", "engines/reference", *ENGINES}
ASKING = {*CORE, DOOR, "native", "engines", "engines/reference"}
MEASURING = {*READING, DOOR, "compile", "report", "bench", "bench/rivals", "demo"}
TRAINING = {*CORE, "native", "bench", "heads", "torch"}
SEARCHING = {"faiss", "hnswlib", "usearch", "scann", "lorann", "rabitqlib", "turbovec", "pyvsag", "onnx", "onnxruntime"}
COMMANDING = {*MEASURING, *TRAINING, "truth", "inspection", "margins", "teacher", "integrations", "integrations/faiss"}

# room -> what its files may import beside the standard library and the room itself. A room is a folder, or a file at the
# top; a folder inside a room is a room of its own.
LAW: dict[str, set[str]] = {
    **{room: {*LEFTWARD[:place], *ARRAYS} for place, room in enumerate(LEFTWARD)},
    "errors": set(),
    "native": {"errors", "dtypes", "question", "answers", "arrays", "packed_rows", "links", "plan", "numpy", "_native"},
    "encode": CORE | {"native"},
    "encode/blocks": CORE | {"native", "encode"},
    "engines/reference": {*CORE, "native"},
    "engines": {*CORE, "number_checks", "native", "encode", "encode/blocks", "engines/reference", "engines/saved"},
    "engines/saved": {*CORE},
    "engines/methods": {*CORE, "number_checks", "native", "encode", "encode/blocks", "engines", "engines/reference"},
    "engines/structured": {*CORE, "number_checks", "native", "engines", "engines/reference", "engines/saved"},
    "engines/mixture": READING - {"engines/device", "engines/saved"},
    "engines/device": {*CORE, "number_checks", "engines"},
    "compile": READING,
    "structured": {"layers"},
    "loading": READING | {"compile"},
    "heads": {*CORE, "native", "torch"},
    "bench": {*ASKING, "bench/rivals", "integrations/llama_cpp", "llama_cpp"},
    "bench/rivals": {*CORE, "bench", "torch", *SEARCHING},
    "report": {"errors", "matplotlib"},
    "torch": {"integrations"},
    "integrations": {
        *ASKING, "compile", "heads", "integrations/generation", "integrations/graphs", "integrations/sklearn",
        "torch", "transformers", "sklearn", "pandas", "pyarrow", "ray", "scipy",
    },
    "integrations/faiss": ASKING,
    "integrations/generation": {*ASKING, "integrations", "integrations/graphs", "torch", "transformers"},
    "integrations/graphs": {*ASKING, "integrations/generation", "torch", "onnx", "onnxruntime", "openvino"},
    "integrations/sklearn": {*ASKING, "heads", "torch", "sklearn", "scipy"},
    "integrations/llama_cpp": {*ASKING, "fastapi", "llama_cpp", "lm_eval", "sse_starlette", "tqdm", "uvicorn"},
    "integrations/recommenders": {*ASKING, "scipy", "implicit", "rectools"},
    "inspection": MEASURING,
    "truth": {*CORE, DOOR, "native", "engines"},
    "margins": {*CORE, "native", "engines"},
    "teacher": CORE,
    "tune": MEASURING,
    "demo": {*MEASURING, "inspection"},
    "cli": {*COMMANDING, "cli/commands", "loading", "tune", "typer", "rich"},
    "cli/commands": {"integrations/llama_cpp", *COMMANDING, "cli", "loading", "tune", "typer"},
    "__init__": {*LEFTWARD, "compile", "loading", "tune", "engines", "structured"},
    "__main__": {"cli"},
}
FILES = {
    "demo/language_model.py": {"torch"}, "packed_rows.py": {"gguf"},
    **{f"tables/{name}.py": {"pyarrow", "lance"} for name in ("arrow", "files", "answers")},
    "engines/device/memory.py": {"torch", "triton"}, "engines/device/kernels.py": {"triton"},
}  # fmt: skip
"""Files with a package of their own: a GPU's memory, GGUF files, tables."""
OPTIONAL = {"pyarrow", "lance", "ray", "torch", "matplotlib", "transformers", "scipy", "gguf", "llama_cpp", *SEARCHING}
"""Packages that need not be there: imported inside functions only..."""
AT_THE_TOP = {
    "heads": {"torch"},
    "integrations": {"torch", "transformers", "sklearn", "scipy"},
    "integrations/generation": {"torch", "transformers"},
    "integrations/graphs": {"torch", "onnx", "onnxruntime", "openvino"},
    "integrations/sklearn": {"torch", "sklearn", "scipy"},
    "integrations/llama_cpp": {"fastapi", "llama_cpp", "lm_eval", "sse_starlette", "tqdm", "uvicorn"},
    "integrations/recommenders": {"scipy", "implicit", "rectools"},
}
"""...but for these, which are nothing without them."""


LOADED = {"cli/terminal.py", "cli/inputs.py", "cli/arrays.py", "cli/nearest.py"}
"""What only a running command imports of the command line; the rest imports nothing of the library before."""


def room_of(path: str) -> str:
    """The folder that a file is in, or the file itself at the top: ``"engines/full/x.py" -> "engines/full"``."""
    return path.rpartition("/")[0] or path.removesuffix(".py")


def target_of(dotted: str) -> str:
    """The room that ``headlong.a.b.c`` lies in: the longest part of the name that the law knows."""
    parts = dotted.split(".")[1:]
    known = ("/".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((room for room in known if room in LAW), parts[0] if parts else DOOR)


def imports(tree: ast.AST) -> Iterator[tuple[str, int, bool]]:
    """``(dotted name, line, whether it runs when the file is imported)`` for every import, wherever it stands."""
    inside = {id(node) for later in ast.walk(tree) if _runs_later(later) for node in ast.walk(later)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, id(node) not in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            ours = (node.module or "").partition(".")[0] == "headlong"  # `from headlong.bench import measure` is a file, too
            names = [f"{node.module}.{alias.name}" for alias in node.names] if ours else [node.module or "."]
            yield from ((name, node.lineno, id(node) not in inside) for name in names)
        elif _is_import_call(node):
            yield str(node.args[0].value), node.lineno, id(node) not in inside


def _runs_later(node: ast.AST) -> bool:
    """A function's body, or a block for the type checker."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _is_import_call(node: ast.AST) -> bool:
    """``importlib.import_module("literal")`` and ``__import__("literal")``."""
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    literal = bool(name) and node.args and isinstance(node.args[0], ast.Constant)
    return bool(literal) and name in {"importlib.import_module", "import_module", "__import__"}


def breaches(path: str, source: str) -> list[str]:
    """What a file of the package imports against the law; ``path`` is relative to the package."""
    room = room_of(path)
    if room not in LAW:
        return [f"{path}: the room {room!r} is not in the law"]
    found = []
    for name, line, at_top in imports(ast.parse(source)):
        package = name.partition(".")[0]
        if package == "headlong":
            target = target_of(name)
            allowed = {room, *LAW[room], *(headlong.__all__ if DOOR in LAW[room] else ())}
        else:
            target = package
            allowed = {*STANDARD, *LAW[room], *FILES.get(path, ())}
        if target not in allowed:
            found.append(f"{path}:{line}: {room} may not import {name}")
        lazy = OPTIONAL - AT_THE_TOP.get(room, set())
        commands = room in {"cli", "cli/commands"}
        before = commands and path not in LOADED and package == "headlong" and target not in {"errors", "cli", "cli/commands"}
        if at_top and (target in lazy or before):
            found.append(f"{path}:{line}: {name} may be imported inside functions only")
    return found


def test_who_may_import_whom() -> None:
    files = sorted(HOME.rglob("*.py"))
    assert len(files) > 10
    found = [breach for file in files for breach in breaches(file.relative_to(HOME).as_posix(), file.read_text())]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("errors.py", "import numpy"),
        ("links.py", "from headlong import store"),
        ("store.py", "import pickle"),
        ("layers/matrix.py", "def f():\n    import torch"),
        ("engines/device/memory.py", "import torch"),
        ("engines/device/engine.py", "def f():\n    import torch"),
        ("engines/methods/svd.py", "import importlib\nimportlib.import_module('headlong.compile')"),
        ("engines/methods/svd.py", "import headlong"),
        ("bench/rivals/vector_search.py", "import faiss"),
        ("cli/commands/compile.py", "import headlong.compile"),
        ("engines/methods/svd.py", "from headlong.engines.structured.base import StructuredEngine"),
        ("cli/commands/harvest.py", "def f():\n    from studies import papers"),
        ("attic/old.py", "import math"),
    ],
)
def test_the_law_can_be_broken(path: str, source: str) -> None:
    assert breaches(path, source)


BEHIND = {
    "bench": "PyTorch's own full softmax as it is timed everywhere else in the project",
    "bench.measure": "one clock, and one description of machine and commit in every record",
    "integrations.harvest": "the command `headlong harvest` has no option for the window that a paper reads its text in",
    "store": "files that are whole or not there, and refused where they are damaged: no other reader or writer",
}
"""Modules that the studies read behind the public names, and why; nothing is to be added."""


def test_studies_take_public_names_and_few_others() -> None:
    """Public are the names of the package, and modules that a page of ``docs/`` imports from."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    public = {"errors", "structured", *re.findall(r"^from headlong\.([\w.]+) import", pages, re.MULTILINE)}
    found = {
        node.module.removeprefix("headlong.")
        for file in (ROOT / "studies").rglob("*.py") if "tests" not in file.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headlong.")
    }  # fmt: skip
    assert {"heads", "heads.expert_pruning"} <= public and found - public == BEHIND.keys()


def test_public_names_are_sorted_and_importable() -> None:
    assert headlong.__all__ == sorted(headlong.__all__)
    assert {*headlong._HOMES, *headlong._MODULES} == set(headlong.__all__)
    for name in headlong.__all__:
        assert getattr(headlong, name) is not None
    assert set(headlong.__all__) <= set(dir(headlong))
    with pytest.raises(AttributeError, match=r"no attribute 'complie'; it has .*compile"):
        headlong.complie  # noqa: B018


def test_public_names_are_those_the_type_checker_sees() -> None:
    tree = ast.parse((HOME / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(headlong.__all__)


HEAVY = "print(*sorted({'torch', 'typer', 'rich', 'matplotlib', 'headlong.cli', 'headlong._native'} & set(sys.modules)))"


@pytest.mark.parametrize("used", ["", "; headlong.Layer, headlong.TopK"])
def test_import_pulls_in_nothing_heavy(used: str) -> None:
    assert said(f"import sys, headlong{used}; {HEAVY}") == ""


def test_import_is_quick() -> None:
    """Counted, not timed: few modules, all of them Python's own, on any machine."""
    loaded = said("import sys; before = set(sys.modules); import headlong; print(*sorted(set(sys.modules) - before))").split()
    assert "headlong" in loaded and len(loaded) < 60, loaded
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names - {"headlong"}
    assert not foreign, foreign


def test_compile_is_the_function_whichever_way_its_file_was_imported() -> None:
    code = "import importlib; importlib.import_module('headlong.compile'); import headlong; print(callable(headlong.compile))"
    assert said(code) == "True"


ROOT = Path(__file__).resolve().parents[1]


def test_no_message_puts_an_article_before_a_name_that_somebody_else_gave() -> None:
    """"a ndarray", "a exaone model": ``errors.an`` finds the article."""
    assert [an(name) for name in ("ndarray", ".npy", "AlternatingLeastSquares", "list")] == [
        "an ndarray", "an .npy", "an AlternatingLeastSquares", "a list",
    ]  # fmt: skip
    wrong = [f"{file.relative_to(ROOT)}: {found}" for file in (ROOT / "src").rglob("*.py")
             for found in re.findall(r"\b[Aa]n? \{[^}\n]*\}", file.read_text(encoding="utf-8"))]  # fmt: skip
    assert not wrong


def test_the_version_is_stated_once() -> None:
    """In the package; the build and ``tools/release`` read it there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "src/headlong/__init__.py"
    release = runpy.run_path(str(ROOT / "tools/release"), run_name="release")
    assert release["version"]() == headlong.__version__
    with pytest.raises(SystemExit, match="FAILED  tag v9"):
        release["check"]("v9")


def test_faults_can_still_be_planted() -> None:
    """``tools/plant_faults.py`` writes a line otherwise: it has to be there, once."""
    faults = tomllib.loads((ROOT / "tools/faults.toml").read_text(encoding="utf-8"))["fault"]
    lost = [one["what"] for one in faults if (ROOT / one["file"]).read_text(encoding="utf-8").count(one["old"]) != 1]
    assert len(faults) > 10 and not lost


def test_vectors_fit_their_registers() -> None:
    """A wider one lives in memory: right, and many times slower."""
    wide = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "csrc").rglob("*"))
        if path.suffix in (".cpp", ".h", ".inl")
        and "avx512" not in path.name
        and re.search(r"vector_size\((64|LANES \* 8)\)", path.read_text(encoding="utf-8"))
    ]
    assert wide == []
