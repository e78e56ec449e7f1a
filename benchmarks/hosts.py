"""Tokens of a language model whose layers OpenVINO or ONNX Runtime computes: as optimum has it, and with its head read here.

    just hosts    # the versions that go together; no tests: pip install what it names
    python benchmarks/hosts.py --model gemma3-270m --host openvino --kind int4 --json results/hosts.json

A folder of ``decode_step.py``'s model is exported once and kept beside it: layers in int4 groups of 64 and the embedding, to
which the head is tied, in int8 as the exporter does by default; all in int8; or in float32. Both decode by the same
``generate``, in turns; times are medians of whole calls over their tokens, the first of each is not counted; ``times`` is the
median of ratios of turns side by side. ``--alike``: of 200 greedy tokens, ours that are the argmax of a float64 product of the
same hidden vector with the same stored weights, and the host's that are the same text as ours. Calibrated on Python's manual.
ONNX Runtime is timed as it is twice, once with threads that stop looking out for work when a call ends.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from common import turns
from common.models import folder, title
from common.turns import STEPS, STOPPED
from decode_step import PROMPTS, opened

ALIKE = 200


def exported(name: str, host: str, kind: str) -> Path:
    kept = folder() / f"{name}.{host}-{kind}"
    if not kept.is_dir():
        opened(name)
        plain = folder() / f"{name}.transformers"
        with TemporaryDirectory(dir=folder()) as scratch:  # nothing half done has the name of what is kept
            made = Path(scratch) / "model"
            if host == "openvino":
                from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig

                few = {"bits": 4, "group_size": 64, "ratio": 1.0}
                how = OVWeightQuantizationConfig(**few if kind == "int4" else {"bits": 8})
                options = {"load_in_8bit": False} if kind == "fp32" else {"quantization_config": how}
                OVModelForCausalLM.from_pretrained(plain, export=True, compile=False, **options).save_pretrained(made)
            elif kind == "fp32":
                from optimum.onnxruntime import ORTModelForCausalLM

                ORTModelForCausalLM.from_pretrained(plain, export=True).save_pretrained(made)
            else:
                shutil.copytree(exported(name, host, "fp32"), made, ignore=shutil.ignore_patterns("*.onnx*"))
                compressed(kept.with_name(f"{name}.{host}-fp32") / "model.onnx", made / "model.onnx", kind)
            made.rename(kept)
    return kept


def compressed(whole: Path, file: Path, kind: str) -> None:
    """A graph in float32 by ONNX Runtime's own tools; what they do before folds the transposition of a tied head."""
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer, quant_pre_process, quantize_dynamic

    with TemporaryDirectory(dir=file.parent.parent) as scratch:
        folded = Path(scratch) / "model.onnx"
        quant_pre_process(whole, folded, skip_symbolic_shape=True, save_as_external_data=True, all_tensors_to_one_file=True)
        if kind == "int8":
            # without VNNI eight bits by eight overflow sixteen, as its page on quantisation says: seven do not
            quantize_dynamic(folded, file, per_channel=True, reduce_range=True, use_external_data_format=True)
            return
        graph = onnx.load(folded)
    head = [node.name for node in graph.graph.node if "logits" in node.output]
    how = {"block_size": 32, "is_symmetric": True, "accuracy_level": 4}
    for bits, left in ((4, head), (8, [])):
        tool = matmul_nbits_quantizer.MatMulNBitsQuantizer(graph, bits=bits, nodes_to_exclude=left, **how)
        tool.process()
        graph = tool.model.model
    tool.model.save_model_to_file(str(file), use_external_data_format=True)


def loaded(path: Path, host: str, threads: int, stopped: bool = False) -> Any:
    if host == "openvino":
        from optimum.intel import OVModelForCausalLM

        return OVModelForCausalLM.from_pretrained(path, ov_config={"INFERENCE_NUM_THREADS": str(threads)})
    from optimum.onnxruntime import ORTModelForCausalLM

    return ORTModelForCausalLM.from_pretrained(path, session_options=turns.onnx_options(threads, stopped))


class Watched:
    """An engine whose greedy answers are kept, to be compared with a product in float64 of the same vectors."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.hidden, self.ids = engine, list[Any](), list[Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def topk(self, hidden: Any, **options: Any) -> Any:
        found = self.engine.topk(hidden, **options)
        self.hidden.append(np.array(hidden, np.float64))
        self.ids.append(np.array(found.ids)[:, 0])
        return found

    def same(self) -> float:
        layer, wide, best = self.engine.layer, np.concatenate(self.hidden), []
        for start in range(0, layer.vocab, 1 << 14):
            scores = wide @ np.asarray(layer.weight[start : start + (1 << 14)], np.float64).T
            best.append((scores.max(1), start + scores.argmax(1)))
        values, ids = (np.stack(part) for part in zip(*best, strict=True))
        return float((ids[values.argmax(0), np.arange(len(wide))] == np.concatenate(self.ids)).mean())


def main() -> int:
    parser, asking = turns.options(__doc__, tokens=64, rounds=3)
    parser.add_argument("--model", choices=["smollm2", "gemma3-270m", "qwen2.5-coder-0.5b"], default="gemma3-270m")
    parser.add_argument("--host", choices=["openvino", "onnx"], default="openvino")
    parser.add_argument("--kind", choices=["int4", "int8", "fp32"], default="int4")
    parser.add_argument("--alike", action="store_true", help="compare 200 greedy tokens, and time nothing")
    parser.add_argument("--export", action="store_true", help="make the folder, and no more")
    asked = asking()
    from transformers import AutoTokenizer

    from headlong.integrations.transformers import accelerate

    path = exported(asked.model, asked.host, asked.kind)
    if asked.export:
        return 0
    tokenizer = AutoTokenizer.from_pretrained(folder() / f"{asked.model}.transformers", padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    ways = {"as it is": loaded(path, asked.host, asked.threads), "headlong": loaded(path, asked.host, asked.threads)}
    if asked.host == "onnx" and not asked.alike:
        ways[STOPPED] = loaded(path, asked.host, asked.threads, stopped=True)
    head = accelerate(ways["headlong"], text=turns.PAGES, tokenizer=tokenizer)
    sys.stdout.write(f"{head}\n")

    def call(model: Any, batch: int, step: str, tokens: int, turn: int) -> Any:
        texts = [PROMPTS[(turn + place) % len(PROMPTS)] for place in range(batch)]
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        inputs.pop("token_type_ids", None)
        shared = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": tokenizer.pad_token_id}
        return model.generate(**inputs, **shared, **STEPS[step])[:, -tokens:]

    engine, rows = head.engine, list[dict[str, Any]]()
    if asked.alike:
        head.by_ids = watched = Watched(head.by_ids)
        found = {name: call(model, 1, "greedy", ALIKE, 0) for name, model in ways.items()}
        equal = {"headlong": watched.same(), "as it is": float((found["headlong"] == found["as it is"]).float().mean())}
        rows = [{"what": f"{name}, greedy", "batch": 1, "tokens": ALIKE, "equal": value} for name, value in equal.items()]
    # Four at once first: OpenVINO 2026.4 may fill hidden vectors with NaN in a batch that comes after single texts.
    for batch, step in () if asked.alike else itertools.product((4, 1), list(STEPS)[:2]):
        calls = {name: partial(call, model, batch, step, asked.tokens) for name, model in ways.items()}
        taken = turns.Turns(calls, asked.rounds)
        for name in ways:
            found = taken.row(name, "as it is")
            ms = 1e3 * found["seconds"] / asked.tokens
            rows.append({"what": f"{name}, {step}", "batch": batch, "ms": ms, "times": found["times"]})
            if name == "headlong" and STOPPED in ways:
                rows[-1]["over stopped"] = taken.row(name, STOPPED)["times"]
    sys.stdout.write("".join(f"{row}\n" for row in rows))
    name = f"{asked.model} {asked.host} {asked.kind}{', tokens' if asked.alike else ''}"
    more = " --alike" if asked.alike else f" --tokens {asked.tokens} --rounds {asked.rounds}"
    command = f"python benchmarks/hosts.py --model {asked.model} --host {asked.host} --kind {asked.kind}{more}"
    about = f"{title(asked.model)}, {asked.host}, {asked.kind}"
    turns.keep(asked, "hosts", about, engine.layer, rows, name, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
