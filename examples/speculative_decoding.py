"""Speculative decoding whose draft has an exact, accelerated head: the same drafts, accepted as often, in less time.

python examples/speculative_decoding.py path/to/model path/to/smaller/model "Once upon a time"
"""

import sys
import time
from typing import Any

import torch

from headlong.integrations.transformers import accelerate, generate, restore


class Meter:
    """Calls of a module, and the seconds inside them."""

    def __init__(self, module: Any) -> None:
        self.calls, self.seconds = 0, 0.0
        self._hooks = [module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end)]

    def _begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def _end(self, *_: Any) -> None:
        self.calls += 1
        self.seconds += time.perf_counter() - self._began

    def close(self) -> "Meter":
        for hook in self._hooks:
            hook.remove()
        return self


def compare(target: Any, draft: Any, inputs: Any, tokens: int = 64) -> dict[str, Any]:
    """Greedy text with the plain draft and with the accelerated one; how often the target ran, and a draft's own time."""
    found: dict[str, Any] = {}
    for name in ("plain", "accelerated"):
        run = generate if name == "accelerated" else type(target).generate
        for model in (target, draft) if name == "accelerated" else ():
            accelerate(model)
        meter = Meter(target)
        text = run(target, **inputs, assistant_model=draft, max_new_tokens=tokens, do_sample=False)
        began = time.perf_counter()
        alone = run(draft, **inputs, max_new_tokens=tokens, do_sample=False)
        found[name] = {
            "text": text, "target calls": meter.close().calls, "alone": alone,
            "draft ms a token": 1e3 * (time.perf_counter() - began) / (alone.shape[1] - inputs["input_ids"].shape[1]),
        }  # fmt: skip
    for model in (target, draft):
        restore(model)
    return found


def report(found: dict[str, Any]) -> str:
    plain, fast = found["plain"], found["accelerated"]
    same = torch.equal(plain["text"], fast["text"]) and torch.equal(plain["alone"], fast["alone"])
    return (
        f"the same tokens: {same}; the target ran {fast['target calls']} times for {plain['target calls']}; "
        f"a draft's token took {fast['draft ms a token']:.2f} ms for {plain['draft ms a token']:.2f}"
    )


def main(folder: str, smaller: str, prompt: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target, draft = (AutoModelForCausalLM.from_pretrained(place).eval() for place in (folder, smaller))
    print(report(compare(target, draft, AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt"))))


if __name__ == "__main__":
    main(*sys.argv[1:4])
