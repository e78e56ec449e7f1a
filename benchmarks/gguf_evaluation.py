"""Evaluations of a GGUF model by lm-evaluation-harness, and of its quantisations by ``headlong kld``.

    python benchmarks/gguf_evaluation.py tasks MODEL.gguf TEXT results/evaluation-tasks.json
    python benchmarks/gguf_evaluation.py divergences MODEL.gguf TEXT results/evaluation.json

``tasks``: two are made of the text: which of four endings a paragraph has, and which word is next. They are scored by
transformers over the same dequantised weights, by headlong, by headlong's server through the harness's ``local-completions``,
and by llama.cpp as it is: its own server, through the harness's ``gguf``. ``divergences``: of two quantisations of the model's
dequantised weights, in windows of 512.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np

from headlong.bench.measure import claim_threads, environment, write_run

COUNT, WORDS, TOKENS, PORT, CONTEXT = 40, 12, 4096, 8731, 1024
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{context}}}}"
{rest}
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
CHOICE = 'doc_to_choice: "{{choices}}"\ndoc_to_target: answer\ntarget_delimiter: ""'
WORD = 'doc_to_target: "{{word}}"\ntarget_delimiter: ""'


def tasks(text: str, folder: Path) -> list[str]:
    lines = [line.strip() for line in text.splitlines() if len(line) > 500 and " = " not in line][:COUNT]
    rng = np.random.default_rng(0)
    endings, words = [], []
    for number, line in enumerate(lines):
        parts = line.split(" ")
        cut = len(parts) // 3
        others = [lines[(number + step) % len(lines)].split(" ") for step in (1, 2, 3)]
        choices = [" " + " ".join(one[len(one) // 3 : len(one) // 3 + WORDS]) for one in (parts, *others)]
        order = rng.permutation(4).tolist()
        shuffled = [choices[place] for place in order]
        endings.append({"context": " ".join(parts[:cut]), "choices": shuffled, "answer": order.index(0)})
        stop = next(place for place in range(40, len(parts)) if parts[place].isalpha() and len(parts[place]) > 4)
        words.append({"context": " ".join(parts[:stop]), "word": f" {parts[stop]}"})
    for name, docs, kind, rest in (
        ("endings", endings, "multiple_choice", CHOICE), ("words", words, "loglikelihood", WORD),
    ):  # fmt: skip
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(one) + "\n" for one in docs))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=json.dumps(str(data)), kind=kind, rest=rest))
    return ["endings", "words"]


def evaluated(model: Any, folder: Path, names: list[str]) -> dict[str, Any]:
    """Accuracies, the log-likelihood of each answer, and seconds."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    start = time.perf_counter()
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(model, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True)
    assert found is not None
    values = {name: [float(one[0]) for doc in found["samples"][name] for one in doc["filtered_resps"]] for name in names}
    return {
        "acc": {name: found["results"][name]["acc,none"] for name in names},
        "values": values, "seconds": time.perf_counter() - start,
    }  # fmt: skip


class Server:
    def __init__(self, *words: str) -> None:
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self.process = subprocess.Popen([sys.executable, *words, "--port", str(PORT)], **quiet)

    def __enter__(self) -> str:
        url = f"http://127.0.0.1:{PORT}"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        return url

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def scores(path: Path, text: str, threads: int) -> dict[str, Any]:
    import torch
    import transformers
    from lm_eval.models.gguf import GGUFLM
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from headlong.integrations.llama_cpp.lm_eval import HeadlongGguf

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        names, found = tasks(text, folder), {}
        whole = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        tokenizer.save_pretrained(folder / "tokenizer")
        # Its cache takes a request for another one that begins with the same tokens, if tasks are scored together.
        hf = HFLM(whole, tokenizer=tokenizer, max_length=CONTEXT, device="cpu", batch_size=8, logits_cache=False)
        found["transformers, float32"] = evaluated(hf, folder, names)
        del hf, whole
        half = requantised(path, "F16", folder / "F16.gguf")
        for way, file in (("headlong, the weights in float16", half), ("headlong", path)):
            ours = HeadlongGguf(str(file), n_ctx=CONTEXT, n_threads=threads)
            found[way] = evaluated(ours, folder, names)
            error = ours.errors
            ours.model.close()
        with Server("-m", "headlong", "serve", str(path), "--context", str(CONTEXT), "--threads", str(threads)) as url:
            remote = LocalCompletionsAPI(
                base_url=f"{url}/v1/completions", model="any", tokenizer=str(folder / "tokenizer"),
                tokenizer_backend="huggingface", tokenized_requests=False, max_length=CONTEXT, num_concurrent=4,
            )  # fmt: skip
            found["headlong serve, local-completions"] = evaluated(remote, folder, names)
        stock = ("-m", "llama_cpp.server", "--model", str(path), "--logits_all", "True", "--n_ctx", str(CONTEXT))
        with Server(*stock, "--n_threads", str(threads)) as url:
            stock_model = GGUFLM(base_url=url, max_length=CONTEXT)  # half a minute a request on a busy machine: one task
            found["llama.cpp's server, gguf"] = evaluated(stock_model, folder, names[1:])
    exact = found["transformers, float32"]["values"]
    for one in found.values():
        values = one.pop("values")
        one["apart"] = {name: float(np.max(np.abs(np.subtract(values[name], exact[name])))) for name in values}
    return {"rows": found, "error": error, "documents": COUNT}


def requantised(path: Path, kind: str, out: Path) -> Path:
    """The model's dequantised weights in another kind of numbers; vectors stay float32."""
    reader, types = package.GGUFReader(path), package.GGMLQuantizationType
    writer = package.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            of = field.types[-1] if field.types[0] == package.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], of)
    for tensor in reader.tensors:
        values = package.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        to = types.F32 if values.ndim == 1 else types[kind]
        writer.add_tensor(tensor.name, package.quants.quantize(values, to), raw_dtype=to)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def divergences(path: Path, text: str, threads: int) -> dict[str, Any]:
    """Of two quantisations from float16, and how far the numbers are from products of everything in float64."""
    from headlong.integrations.llama_cpp import Model
    from headlong.integrations.llama_cpp.divergence import kld, summary

    found: dict[str, Any] = {}
    options: dict[str, Any] = {"n_ctx": 513, "n_threads": threads, "compiled": False}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Model(requantised(path, "F16", folder / "F16.gguf"), cache=folder, **options) as base:
            for kind in ("Q8_0", "Q4_0"):
                with Model(requantised(path, kind, folder / f"{kind}.gguf"), cache=folder, **options) as other:
                    start = time.perf_counter()
                    one = kld(base, other, text, tokens=TOKENS, folder=folder / "kept")
                    found[kind] = {**summary(one)._asdict(), "seconds": time.perf_counter() - start}
                    found[kind]["apart"] = float(np.abs(one.kl - in_full(base, other, text)).max())
    return found


def in_full(base: Any, other: Any, text: str) -> Any:
    """The definition, over all logits in float64."""
    ids, found = base.tokenize(text.encode(), add_bos=False)[:TOKENS], []
    weights = [np.asarray(one.layer.weight[:], np.float64) for one in (base, other)]
    for at in range(0, len(ids) - 511, 512):
        logs = []
        for model, weight in zip((base, other), weights, strict=True):
            logits = model.layer.link(model.hidden(ids[at : at + 512])[256:-1].astype(np.float64) @ weight.T)
            logs.append(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        found.append((np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1))
    return np.concatenate(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tasks", "divergences"])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    claim_threads(asked.threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    text = asked.text.read_text(encoding="utf-8")
    record = {"environment": environment(asked.threads), "model": asked.model.name, "text": asked.text.name}
    record[asked.what] = {"tasks": scores, "divergences": divergences}[asked.what](asked.model, text, asked.threads)
    write_run(asked.out, record)


if __name__ == "__main__":
    main()
