"""What a study measures beside its tables, by name: each is one module with ``main(*arguments)``.

::

    python -m studies reproduce liao2019:times results/studies/liao2019.times.json

A table's rows are run and judged by the registry in ``__init__``; a script writes one file of its own, which pages and
figures are made from. What its arguments mean is in the module's docstring.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headlong.bench.measure import environment, write_run
from headlong.errors import OptionError


class Script(NamedTuple):
    """``studies.MODULE.main(*TAKES)``, and what it is for."""

    module: str
    takes: str
    claim: str


SCRIPTS: dict[str, Script] = {
    "baharav2024:logs": Script("papers.adaptive_softmax.logs", "CLONE FILE", "the authors' cells, from their own rows"),
    "baharav2024:nets": Script("papers.adaptive_softmax.nets", "mnist|eurosat OUT", "trains the paper's network on pictures"),
    "baharav2024:smollm2": Script("papers.adaptive_softmax.smollm2", "FILE", "SmolLM2's hidden vectors of Penn Treebank"),
    "ganea2019:ranks": Script("papers.monotonic_softmax.ranks", "FILE", "ranks of the log-probabilities of made heads"),
    "liao2019:contents": Script("papers.doubly_sparse.contents", "FILE", "which classes the experts hold"),
    "liao2019:times": Script("papers.doubly_sparse.times", "FILE", "times of every method at the four printed shapes"),
    "training:heads": Script("models.head_costs", "steps|memory FILE", "seconds and memory of a step of each head"),
    "vlasova-softmax:large": Script("papers.large_heads", "FILE", "the published methods and ours on Gemma's and Qwen's heads"),
    "vlasova-softmax:spectra": Script("papers.svd_hierarchical.spectra", "FILE", "singular values of the layers at hand"),
    "vlasova-softmax:times": Script("papers.svd_hierarchical.times", "prepare|time FOLDER [FILE LAYER...]", "times of heads"),
}


def of(target: str | None) -> list[tuple[str, Script]]:
    """All scripts, or those of a study."""
    return [(name, script) for name, script in SCRIPTS.items() if target in (None, name, name.partition(":")[0])]


def run(name: str, arguments: Sequence[str]) -> None:
    """``main(*arguments)`` of the script; a wrong number of them is refused with what it takes."""
    script = SCRIPTS[name]
    main = importlib.import_module(f"studies.{script.module}").main
    try:
        inspect.signature(main).bind(*arguments)
    except TypeError as error:
        got = " ".join(arguments) or "nothing"
        raise OptionError(f"{name} takes {script.takes}; got {got}") from error
    main(*arguments)


def keep(file: str, command: str, record: Mapping[str, Any], threads: int = 1) -> None:
    """What ``STUDY:SCRIPT ...`` measured, with the command that repeats it, the machine and the commit."""
    command = f"python -m studies reproduce {command} results/studies/{Path(file).name}"
    write_run(file, {"command": command, "environment": environment(threads), **record})
