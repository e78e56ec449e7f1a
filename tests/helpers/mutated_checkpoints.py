"""Folders of small models, changed in one to three ways: the layer read is the model's own output layer, or none is.

    python tests/helpers/mutated_checkpoints.py --each 50 --seed 1

The oracle is transformers, which loads the changed folder by the class that its configuration names: where that class has an
output layer of words whose numbers came from the files, a layer that is read has to be it; where it has none, or where its
numbers were made up, nothing may be read. GGUF files have llama.cpp's rule for an absent ``output.weight``, quantised heads
their own arithmetic: these are in ``tests/layers``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import headlong
from headlong.errors import HeadlongError

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "n_embd": 16, "d_model": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "n_layer": 1, "num_attention_heads": 2, "n_head": 2, "num_key_value_heads": 2, "head_dim": 8, "d_kv": 8, "d_ff": 24,
    "num_layers": 1, "num_heads": 2, "ffn_dim": 24, "word_embed_proj_dim": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "max_position_embeddings": 32, "n_positions": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip
FAMILIES = {
    "llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM", "qwen2": "Qwen2ForCausalLM", "mistral": "MistralForCausalLM",
    "gpt2": "GPT2LMHeadModel", "gpt_neox": "GPTNeoXForCausalLM", "opt": "OPTForCausalLM", "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration", "bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM",
    "phi3": "Phi3ForCausalLM",
}  # fmt: skip
Folder = tuple[dict[str, Any], dict[str, torch.Tensor]]
HEADS = ("lm_head.weight", "embed_out.weight", "cls.predictions.decoder.weight", "lm_head.decoder.weight")


def built(family: str) -> tuple[type[Any], Folder]:
    """A model with random weights, as ``save_pretrained`` leaves it."""
    known = transformers.AutoConfig.for_model(family)
    config = type(known)(**{key: value for key, value in SIZES.items() if hasattr(known, key)})
    kind = getattr(transformers, FAMILIES[family])
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as place:
        kind(config).save_pretrained(place)
        tensors = load_file(f"{place}/model.safetensors")
        return kind, (json.loads((Path(place) / "config.json").read_text()), tensors)


def untie(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    config["tie_word_embeddings"] = False


def tie(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    config["tie_word_embeddings"] = True


def silence(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    config.pop("tie_word_embeddings", None)


def lose_the_head(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    for name in HEADS:
        tensors.pop(name, None)


def lose_the_words(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    for name in [name for name in tensors if "embed_tokens" in name or "wte" in name or "word_emb" in name or "shared" in name]:
        del tensors[name]


def own_head(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    tensors[chance.choice(HEADS)] = torch.randn(40, 16)


def classify(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    of = (config.get("architectures") or ["Llama"])[0].split("For")[0].removesuffix("LMHeadModel")
    config["architectures"] = [of + chance.choice(["ForSequenceClassification", "ForTokenClassification", "Model"])]
    if chance.random() < 0.5:
        tensors["score.weight"] = torch.randn(2, 16)


def odd_beside(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    stem = chance.choice(HEADS).removesuffix("weight")
    tensors[stem + chance.choice(["qweight", "scales", "weight_scale", "SCB"])] = torch.randn(40, 1)


def rename(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    name = chance.choice(list(tensors))
    tensors[chance.choice(["model.", "transformer.", "base_model.", ""]) + name.split(".", 1)[-1]] = tensors.pop(name)


def other_family(config: dict[str, Any], tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    config["architectures"] = []
    config.pop(chance.choice(["model_type", "architectures"]), None)


MUTATIONS: tuple[Callable[..., None], ...] = (
    untie, tie, silence, silence, lose_the_head, lose_the_head, lose_the_words, own_head, classify, odd_beside, rename,
    other_family,
)  # fmt: skip


def oracle(place: Path, kind: type[Any], config: dict[str, Any], name: str) -> np.ndarray | None:
    """The weight of the output layer that the class of the folder has from its files; None: it has none from there.

    ``lm_head.weight`` is what was asked for; and a matrix whose ``name`` is that of output layers is one, whatever class the
    configuration names. Without a class it is the one that the folder was made by.
    """
    named = config.get("architectures")
    of = getattr(transformers, named[0], None) if named else kind
    if name == HEADS[0] or (of is not kind and name in HEADS):
        return load_file(place / "model.safetensors")[name].numpy()
    if "model_type" not in config:
        (place / "config.json").write_text(json.dumps({**config, "model_type": kind.config_class.model_type}))
    try:
        model, loaded = of.from_pretrained(place, output_loading_info=True, ignore_mismatched_sizes=True)
    except Exception:
        return None
    head = model.get_output_embeddings()
    if head is None or any(missing in HEADS for missing in loaded["missing_keys"]):
        return None
    words = model.get_input_embeddings().weight
    names = {name for name, one in model.named_parameters(remove_duplicate=False) if one is head.weight or one is words}
    if head.weight is words and all(name in loaded["missing_keys"] for name in names):
        return None
    found: np.ndarray = head.weight.detach().float().numpy()
    return found


def outcome(place: Path, kind: type[Any], config: dict[str, Any]) -> str:
    """``read``, ``refused``, or what is wrong."""
    try:
        layer = headlong.Layer.load(place)
    except HeadlongError:
        return "refused"
    right = oracle(place, kind, config, layer.name)
    if right is None:
        return f"WRONG: {layer.name} was read where transformers has no output layer"
    same = right.shape == (layer.vocab, layer.dim) and np.array_equal(np.asarray(layer.weight, np.float32), right)
    return "read" if same else f"WRONG: {layer.name} is not the output layer of transformers"


def mutated(family: str, each: int, seed: int) -> Counter[str]:
    kind, (config, tensors) = built(family)
    came: Counter[str] = Counter()
    for number in range(each):
        chance = random.Random(f"{family} {seed} {number}")
        changed, parts = json.loads(json.dumps(config)), dict(tensors)
        torch.manual_seed(number)
        done = [chance.choice(MUTATIONS) for _ in range(chance.choice((0, 1, 1, 2, 2, 3)))]
        for mutation in done:
            mutation(changed, parts, chance)
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "config.json").write_text(json.dumps(changed))
            save_file({name: part.contiguous() for name, part in parts.items()}, f"{place}/model.safetensors", {"format": "pt"})
            said = outcome(Path(place), kind, changed)
        came[said if said in ("read", "refused") else f"{said} ({number}: {', '.join(one.__name__ for one in done)})"] += 1
    return came


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrong = 0
    for family in FAMILIES:
        came = mutated(family, given.each, given.seed)
        wrong += sum(count for said, count in came.items() if said.startswith("WRONG"))
        print(family, dict(came), flush=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
