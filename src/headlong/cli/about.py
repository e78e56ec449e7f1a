"""``headlong --version --verbose``: what a report of a fault has to say of the machine. Names no host, user or folder."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator

PACKAGES = (
    "numpy", "ml_dtypes", "torch", "triton", "transformers", "scikit-learn", "scipy", "gguf", "llama-cpp-python", "faiss-cpu",
    "matplotlib", "typer", "rich",
)  # fmt: skip
VARIABLES = ("HEADLONG_ISA", "HEADLONG_THREADS", "HEADLONG_PLAN", "OMP_NUM_THREADS")


def about() -> Iterator[str]:
    """A line for each fact, its name first."""
    from headlong import native
    from headlong.bench.measure import environment

    threads = native.threads()
    facts = environment(threads)
    versions = {name: _version(name) for name in PACKAGES}
    asked = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    shared = versions["torch"] is not None and os.name != "nt"
    team = f"our own{'; PyTorch' + chr(39) + 's between its operations, where faster' if shared else ''}"
    yield f"commit      {facts['commit'] or 'none: installed'}"
    yield f"system      {facts['system']}, Python {facts['python']}"
    yield f"processor   {facts['cpu']}: {' '.join(facts['isa'])}"
    yield f"level       {_level()}"
    yield f"threads     {threads}, of {facts['cpus']} processors; team: {team}"
    yield f"variables   {', '.join(f'{name}={value}' for name, value in asked.items()) or 'none of ours is set'}"
    yield f"found       {', '.join(f'{name} {version}' for name, version in versions.items() if version)}"
    yield f"not found   {', '.join(name for name, version in versions.items() if not version) or 'nothing'}"


def _level() -> str:
    """The one in use and the others here; or why there is none: a report of that needs the other lines most."""
    from headlong import native
    from headlong.errors import KernelError

    best, *others = reversed(native.levels())
    try:
        return f"{native.isa()}; best here {best}, also {', '.join(others) or 'none'}"
    except KernelError as fault:
        return f"none: {fault}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
