"""Programs that call ``model.generate`` themselves, before and after ``accelerate(model)``: the same answers, sooner.

python examples/generate_clients.py lm_eval|trl|serve [path/to/model]

``pip install lm-eval``, ``pip install trl peft``, ``pip install 'transformers[serving]'``. Without a model a random one of
50,000 words is made. A trainer that moves the output layer itself would decode from the dense layer after its first step; here
it trains adapters, so the layer stays what it was when its engine was compiled.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headlong.integrations.transformers import accelerate

PROMPTS = ["w7 w11 w5", "w3 w9 w4 w8", "w6 w6", "w8 w3 w5 w7"]
TOKENS, VOCAB = 16, 50_000
Asked = Callable[[], list[str]]
Client = Callable[[Path], tuple[Any, Asked]]
"""The model that a client decodes with, and a question to the client."""


def loaded(folder: Path) -> tuple[Any, Any]:
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def lm_eval(folder: Path) -> tuple[Any, Asked]:
    """A task of lm-eval that generates, over questions in a file."""
    import lm_eval as harness
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = loaded(folder)
    path = folder / "questions.json"
    path.write_text(json.dumps([{"question": text, "answer": "w1"} for text in PROMPTS]), encoding="utf-8")
    rules: dict[str, Any] = {"task": "words", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(path)}}}
    rules |= {"test_split": "test", "output_type": "generate_until"}
    rules |= {"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}"}
    rules |= {"generation_kwargs": {"until": ["\n"], "max_gen_toks": TOKENS}, "metric_list": [{"metric": "exact_match"}]}
    task = ConfigurableTask(config=rules)

    def asked() -> list[str]:
        asks = HFLM(pretrained=model, tokenizer=tokenizer, device="cpu", batch_size=len(PROMPTS))
        found = harness.evaluate(asks, {"words": task}, log_samples=True, bootstrap_iters=0)
        return [sample["resps"][0][0] for sample in found["samples"]["words"]]

    return model, asked


def trl(folder: Path) -> tuple[Any, Asked]:
    """A step of GRPO, which samples completions and trains adapters by their rewards; of one word, so that both runs agree."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = loaded(folder)
    settings = GRPOConfig(
        str(folder / "trained"), use_cpu=True, bf16=False, report_to=[], save_strategy="no", max_steps=1, top_k=1,
        max_completion_length=TOKENS, per_device_train_batch_size=4, num_generations=2, disable_tqdm=True,
    )  # fmt: skip
    prompts = Dataset.from_list([{"prompt": text} for text in PROMPTS])
    adapters = LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    made: list[str] = []

    def reward(completions: list[str], **_: Any) -> list[float]:
        made.extend(completions)
        return [float(len(set(text.split()))) for text in completions]

    given = {"args": settings, "train_dataset": prompts, "processing_class": tokenizer}
    trainer = GRPOTrainer(model=model, reward_funcs=reward, peft_config=adapters, **given)

    def asked() -> list[str]:
        made.clear()
        torch.manual_seed(0)
        trainer.train()
        return sorted(made)

    return model, asked


def serve(folder: Path) -> tuple[Any, Asked]:
    """``transformers serve``, asked as any client of such servers asks."""
    from transformers.cli.serve import Serve

    serving = Serve(force_model=str(folder), device="cpu", port=0, non_blocking=True)
    (timed,) = serving._model_manager.loaded_models.values()  # noqa: SLF001  # the model that it has loaded
    while not serving.server.started:
        time.sleep(0.01)
    port = serving.server.servers[0].sockets[0].getsockname()[1]

    def asked() -> list[str]:
        answers = []
        for text in PROMPTS:
            body = {"model": str(folder), "prompt": text, "max_tokens": TOKENS, "temperature": 0}
            request = Request(f"http://localhost:{port}/v1/completions", json.dumps(body).encode())
            request.add_header("Content-Type", "application/json")
            with urlopen(request, timeout=60) as answer:
                answers.append(json.load(answer)["choices"][0]["text"])
        return answers

    asked.end = serving.kill_server  # type: ignore[attr-defined]  # its thread would keep the process
    return timed.model, asked


CLIENTS: dict[str, Client] = {"lm_eval": lm_eval, "trl": trl, "serve": serve}


def random_model(folder: Path) -> None:
    """Of one layer, with an output layer as sharp as trained ones are."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0, **sizes))
    with torch.no_grad():
        model.lm_head.weight.mul_(25.0)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({"?": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, VOCAB)}}, unk_token="?"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="?").save_pretrained(folder)


def main(client: str, path: str = "") -> None:
    """A client's answers before and after one line, and how long it took for them."""
    with tempfile.TemporaryDirectory() as made:
        if not path:
            random_model(Path(made))
        model, asked = CLIENTS[client](Path(path or made))
        try:
            asked()  # the first question of any client is slower
            times, answers = [], []
            for line in (lambda: None, lambda: accelerate(model)):
                head = line()
                began = time.perf_counter()
                answers.append(asked())
                times.append(time.perf_counter() - began)
        finally:
            getattr(asked, "end", lambda: None)()
    assert answers[0] == answers[1] and all(answers[0]), answers
    assert head.paths and not any(way.startswith("dense") for way in head.paths), head.paths
    shown = "{}: {} answers, the same; {:.0f} ms, from candidates {:.0f} ms"
    print(shown.format(client, len(answers[0]), *(1e3 * spent for spent in times)))


if __name__ == "__main__":
    main(*sys.argv[1:])
