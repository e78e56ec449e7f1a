"""lm-evaluation-harness over a GGUF file, as it is installed, beside its own transformers model of the same weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import tiny_gguf
from children import said as python_said
from headlong.errors import OptionError, UnsupportedError

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")
lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'headlong[eval]'")

from headlong.integrations.llama_cpp.lm_eval import HeadlongGguf  # noqa: E402

NEAR, NEAR_EACH = 1e-3, 1e-6
"""Nats of a text, and for each of its nats: what layers in float32 round. Keys and values are float32 here, too."""
CHOICES = """
task: made_choices
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
num_fewshot: 0
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
PERPLEXITY = """
task: made_perplexity
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
ANSWERS = """
task: made_answers
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["z"], max_gen_toks: 9}
metric_list: [{metric: exact_match}]
"""


def tasks(folder: Path) -> Path:
    """Two tasks of made-up words, and one whose answers are written."""
    rng = random.Random(0)

    def words(count: int) -> str:
        return " ".join("".join(rng.choices("abcdehilnorst", k=rng.randint(2, 7))) for _ in range(count))

    made: dict[str, list[dict[str, Any]]] = {
        "choices": [
            {"question": words(12), "choices": [words(count) for count in (1, 2, 2, 4)], "answer": rng.randrange(4)}
            for _ in range(12)
        ],
        "perplexity": [{"text": words(count)} for count in (3, 40, 90, 5)],
        "answers": [{"question": words(6), "answer": "a"} for _ in range(5)],
    }
    for name, task in (("choices", CHOICES), ("perplexity", PERPLEXITY), ("answers", ANSWERS)):
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(one) + "\n" for one in made[name]))
        (folder / f"{name}.yaml").write_text(task.replace("DATA", json.dumps(str(data))))
    return folder


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("models") / "model.gguf", "llama", head="Q8_0")


def evaluated(model: Any, folder: Path, names: list[str]) -> Any:
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(model, tasks=names, task_manager=manager, bootstrap_iters=0, log_samples=True)
    assert found is not None
    return found


@pytest.mark.filterwarnings("ignore")  # of the harness and of what it imports
def test_two_tasks_have_the_scores_of_transformers(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    folder, names = tasks(tmp_path), ["made_choices", "made_perplexity"]
    ours = HeadlongGguf(str(path), n_ctx=512, sequences=4, eps=1e-6, n_threads=1, type_k=0, type_v=0, cache=str(path.parent))
    try:
        found = evaluated(ours, folder, names)
        assert 0 < ours.errors < 1e-6 * 512
        written = evaluated(ours, folder, ["made_answers"])["samples"]["made_answers"]
        prompts = [ours.tok_encode(one["arguments"][0][0]) for one in written]
        alone = [ours.model.generate(prompt, 9, temperature=0, stop="z").text for prompt in prompts]
        assert [one["resps"][0][0] for one in written] == alone and any(alone)
    finally:
        ours.model.close()
    whole = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    theirs = evaluated(HFLM(whole, tokenizer=tokenizer, max_length=512, device="cpu", batch_size=1), folder, names)
    for name in names:
        for mine, other in zip(found["samples"][name], theirs["samples"][name], strict=True):
            for one, two in zip(mine["filtered_resps"], other["filtered_resps"], strict=True):
                (value, best), (expected, likeliest) = ((one, 0), (two, 0)) if isinstance(one, float) else (one, two)
                assert float(value) == pytest.approx(float(expected), abs=NEAR + NEAR_EACH * abs(expected))
                assert bool(best) == bool(likeliest)
        for metric, value in theirs["results"][name].items():
            if isinstance(value, float):
                assert found["results"][name][metric] == pytest.approx(value, rel=1e-3), metric


COMMAND = """
import sys
from headlong.integrations.llama_cpp import lm_eval
sys.argv = ["lm_eval", *sys.argv[1:]]
lm_eval.main()
"""


def test_the_harness_command_knows_the_model(path: Path, tmp_path: Path) -> None:
    arguments = f"pretrained={path},n_ctx=512,sequences=3,n_threads=1,cache={path.parent}"
    words = ["--model", "headlong_gguf", "--model_args", arguments, "--tasks", "made_choices"]
    words += ["--include_path", str(tasks(tmp_path))]
    said = python_said(COMMAND, *words, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hf"), PYTHONWARNINGS="ignore")
    assert "headlong_gguf" in said and "acc_norm" in said


@pytest.mark.filterwarnings("ignore")
def test_what_a_task_may_not_ask_is_a_sentence(path: Path) -> None:
    ours = HeadlongGguf(str(path), n_ctx=512, n_threads=1, cache=str(path.parent), batch_size=1, device="cpu")
    messages = [{"role": "user", "content": "Hello"}]
    text = ours.apply_chat_template(messages)
    assert ours.tok_encode(text) == ours.model.words.chat_prompt(messages)[0] and ours.chat_template(True)
    with pytest.raises(UnsupportedError, match="gen_prefix"):
        ours.apply_chat_template(messages, add_generation_prompt=False)
    with pytest.raises(OptionError, match="a GGUF file has one"):
        ours.chat_template("other")
    with pytest.raises(OptionError, match="a continuation has 600 tokens"):
        ours._loglikelihood_tokens([(None, [5], [6] * 600)], disable_tqdm=True)
    with pytest.raises(OptionError, match="num_beams is no option"):
        ours.generate_until([Asked(("ab", {"num_beams": 4}))], disable_tqdm=True)
    with pytest.raises(OptionError, match="max_gen_toks is 512"):
        HeadlongGguf(str(path), n_ctx=512, n_threads=1, cache=str(path.parent), max_gen_toks=512)
    drawn = {"max_gen_toks": 5, "do_sample": True, "temperature": 0.5}
    ((value, _),) = ours._loglikelihood_tokens([(None, [5] * 600, [6])], disable_tqdm=True)
    (longer,) = ours.generate_until([Asked(("ab " * 400, drawn))], disable_tqdm=True)
    assert value < 0 and isinstance(longer, str), "a text that is too long loses its beginning"
    ours.model.close()


class Asked:
    """An instance of the harness."""

    def __init__(self, args: Any) -> None:
        self.args = args
