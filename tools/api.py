"""Writes docs/api.md from signatures and docstrings::

    python tools/api.py            # write it
    python tools/api.py --check    # exit 1 where it is stale

Sources are parsed, not imported, so no optional package is needed. ``SECTIONS`` says which modules are public; of a module
without a list of names everything is that does not begin with an underscore.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE, PAGE = ROOT / "src" / "headlong", ROOT / "docs" / "api.md"
HEAD = """# API

<!-- Made by `python tools/api.py` from the docstrings; edit those. -->

`import headlong as hl`. Every verb takes NumPy arrays or torch tensors and answers in kind.
"""


class Section(NamedTuple):
    """``names`` of ``module`` under ``title``, shown as ``prefix.name``."""

    title: str
    module: str
    names: tuple[str, ...] = ()
    prefix: str = "headlong"


SECTIONS = (
    Section("Layers and engines", "layers.matrix", ("Layer",)),
    Section("Layers and engines", "compile", ("compile",)),
    Section("Layers and engines", "loading", ("load",)),
    Section("Layers and engines", "tune", ("tune",)),
    Section("Layers and engines", "engines.base", ("Engine",)),
    Section("Layers and engines", "engines.adapting", ("Adapting",), "headlong.engines.adapting"),
    Section("Layers and engines", "engines.contract", ("AnyEngine", "Changeable", "Common"), "headlong.engines.contract"),
    Section("Structured layers", "layers.structured", ("load_layer",)),
    Section("Structured layers", "layers.structured", ("StructuredLayer",), "headlong.layers.structured"),
    *(
        Section("Structured layers", f"layers.{file}", (name,))
        for file, name in (
            ("tree", "TreeLayer"),
            ("bands", "BandsLayer"),
            ("differentiated", "BlocksLayer"),
            ("experts", "ExpertsLayer"),
            ("mixture", "MixtureLayer"),
            ("screens", "ScreenLayer"),
        )
    ),
    Section("Structured layers", "layers.centroid_head", (), "headlong.layers.centroid_head"),
    Section("Promises", "promise", ("Promise",)),
    Section("Answers", "answers", ("Cost", "TopK", "LogProb", "Lse", "Sample")),
    Section("Answers", "engines.sparsemax", ("Sparse", "sparsemax", "entmax15"), "headlong.engines.sparsemax"),
    Section("Links", "links.curves", ("Affine", "SoftCap", "Gss")),
    Section("Links", "links.table", ("Table",)),
    Section("Heads", "heads.base", ("Head", "HeadOutput"), "headlong.heads"),
    Section("Heads", "heads", ("build_head",), "headlong.heads"),
    *(
        Section("Heads", f"heads.{file}", names, "headlong.heads")
        for file, names in (
            ("dense", ("DenseHead",)),
            ("bands", ("BandsHead",)),
            ("differentiated", ("DifferentiatedHead",)),
            ("hierarchical", ("TreeHead", "TwoLevelHead")),
            ("experts", ("ExpertsHead",)),
            ("mixture", ("MixtureHead", "MixedContextsHead")),
            (
                "links",
                ("LinkHead", "TemperatureHead", "SoftCapHead", "SigSoftmaxHead", "GssHead", "MonotoneHead", "PlifHead"),
            ),
        )
    ),
    Section("PyTorch modules", "integrations.torch_output_layer", ("OutputLayer",), "headlong.torch"),
    Section("PyTorch modules", "integrations.torch_adaptive_softmax", ("AdaptiveLogSoftmaxWithLoss",), "headlong.torch"),
    Section("GGUF models", "integrations.llama_cpp.model", ("Model",), "headlong.integrations.llama_cpp"),
    Section("GGUF models", "integrations.llama_cpp.completions", ("Text", "Piece"), "headlong.integrations.llama_cpp"),
    Section("Transformers", "integrations.transformers", ("accelerate", "restore"), "headlong.integrations.transformers"),
    Section("Transformers", "integrations.generation.fast_head", ("FastHead",), "headlong.integrations.transformers"),
    Section(
        "Transformers",
        "integrations.generation.decoding",
        ("generate", "headlong_generate"),
        "headlong.integrations.transformers",
    ),
    *(
        Section("scikit-learn", f"integrations.sklearn.{file}", names, "headlong.integrations.sklearn")
        for file, names in (
            ("linear", ("TopKClassifier",)),
            ("trained", ("HeadClassifier",)),
            ("ranking", ("Ranking", "predict_topk")),
        )
    ),
    *(
        Section("FAISS", f"integrations.{file}", (), "headlong.integrations.faiss_api")
        for file in ("faiss_index", "faiss_ids", "faiss_api", "faiss_selectors")
    ),
    *(
        Section("Recommenders", f"integrations.recommenders.{file}", names, f"headlong.integrations.recommenders.{file}")
        for file, names in (
            ("implicit_model", ("HeadlongModel",)),
            ("rectools_ranker", ("HeadlongRanker",)),
            ("evaluation", ("Evaluation", "evaluate")),
        )
    ),
    Section(
        "Many machines",
        "integrations.distributed",
        ("DistributedEngine", "Traffic", "compile", "connect", "share", "slice_of"),
        "headlong.integrations.distributed",
    ),
    Section("Many machines", "integrations.parallel_loss", ("ShardedHead",), "headlong.integrations.parallel_loss"),
    Section("Many machines", "integrations.offline", ("Scorer", "in_pandas", "spark_schema"), "headlong.integrations.offline"),
    Section("Capacity", "capacity.page", ("Capacity", "capacity"), "headlong.capacity"),
    Section("Errors", "errors", (), "headlong.errors"),
)

Definition = ast.ClassDef | ast.FunctionDef


def tree_of(module: str) -> ast.Module:
    path = SOURCE / module.replace(".", "/")
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    return ast.parse(file.read_text(encoding="utf-8"))


def definitions(section: Section) -> list[Definition]:
    """The section's classes and functions, in the order of its names, else of the file."""
    found = {node.name: node for node in tree_of(section.module).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    missing = [name for name in section.names if name not in found]
    if missing:
        raise SystemExit(f"headlong.{section.module} has no {', '.join(missing)}: mend SECTIONS of tools/api.py")
    return [found[name] for name in section.names or [name for name in found if not name.startswith("_")]]


def parameters(function: ast.FunctionDef, *, method: bool) -> str:
    """The signature without types, which the docstrings spell out where they matter."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    words = [_word(one.arg, default) for one, default in zip(positional, defaults, strict=True)]
    static = any(isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list)
    if method and not static:
        words = words[1:]
    if given.vararg is not None:
        words.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        words.append("*")
    words += [_word(one.arg, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg is not None:
        words.append(f"**{given.kwarg.arg}")
    return f"({', '.join(words)})"


def _word(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def _is(function: ast.FunctionDef, decorator: str) -> bool:
    return any(ast.unparse(one).rpartition(".")[2] == decorator for one in function.decorator_list)


def constructor(node: ast.ClassDef) -> str:
    """What a class is called with: ``__init__``, or the fields of a NamedTuple or a dataclass."""
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if "__init__" in methods:
        return parameters(methods["__init__"], method=True)
    record = any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    record = record or any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    if not record:
        return ""
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    fields = [one for one in fields if "ClassVar" not in ast.unparse(one.annotation)]
    return f"({', '.join(_word(ast.unparse(one.target), one.value) for one in fields)})"


NAMES = r"``[^`]+``(?:, ``[^`]+``)*"


def _as_wide(names: re.Match[str]) -> str:
    """Without backticks, and spaces in their place: the lines stay aligned."""
    return names.group().replace("``", "").ljust(len(names.group()))


def markdown(text: str | None) -> str:
    """A docstring as Markdown: one backtick, roles as code, indented blocks and aligned lists as they stand."""
    text = re.sub(r":(?:class|meth|func|mod|data):`~?([^`]*)`", r"`\1`", text or "")
    paragraphs = [one.rstrip() for one in re.split(r"\n\s*\n", text)]
    out, literal = [], False
    for one in paragraphs:
        if not one.strip():
            continue
        if literal or one.startswith("    "):
            out.append("```text\n" + textwrap.dedent(one) + "\n```")
        elif re.match(NAMES + "  ", one):  # names and what they are, a line each
            lines = [re.sub(f"^{NAMES}", _as_wide, line).replace("``", "") for line in one.split("\n")]
            out.append("```text\n" + "\n".join(lines) + "\n```")
        else:
            plain = one.replace("``", "`")
            out.append(re.sub(r":?:$", ":" if plain != "::" else "", plain))
        literal = one.endswith("::")
    joined = "\n\n".join(one for one in out if one)
    return re.sub(r"\n```\n\n```text\n", "\n\n", joined)


def entry(node: Definition, prefix: str) -> Iterator[str]:
    """A heading and the docstring; of a class its public methods, too."""
    what = parameters(node, method=False) if isinstance(node, ast.FunctionDef) else constructor(node)
    yield f"### `{prefix}.{node.name}{what}`"
    yield markdown(ast.get_docstring(node))
    if isinstance(node, ast.FunctionDef):
        return
    for method in node.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        if method.name == "__init__" and ast.get_docstring(method):
            yield markdown(ast.get_docstring(method))
        text = ast.get_docstring(method)
        if method.name.startswith("_") or not text:
            continue
        shown = "" if _is(method, "property") or _is(method, "cached_property") else parameters(method, method=True)
        yield f"#### `{node.name}.{method.name}{shown}`"
        yield markdown(text)


def page() -> str:
    parts, title = [HEAD.rstrip()], ""
    for section in SECTIONS:
        if section.title != title:
            title = section.title
            parts.append(f"## {title}")
        if title == "Errors":
            parts.append(markdown(ast.get_docstring(tree_of("errors"))))
        for node in definitions(section):
            parts += [part for part in entry(node, section.prefix) if part]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="write docs/api.md from the docstrings")
    parser.add_argument("--check", action="store_true", help="only say whether it is stale")
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        sys.exit(f"{PAGE.relative_to(ROOT)} is stale: run python tools/api.py")
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
