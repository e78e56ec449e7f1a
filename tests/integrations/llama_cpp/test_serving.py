"""``headlong serve``: llama-cpp-python's own server over a :class:`Model`, asked by clients as they are installed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from headlong.errors import InputError
from tiny_gguf import opened

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model

PROMPTS = ["Hello ab", "one two three four", "x", "ab " * 30, "Hello abc", "\u00e9\u4e16"]
WAYS: list[dict[str, Any]] = [{"temperature": 0.0}, {"seed": 5, "temperature": 1.0}, {"seed": 6}]


def test_texts_of_threads_are_what_each_is_alone(tmp_path: Path) -> None:
    """More threads than sequences, with streams that nobody reads to their end among them."""
    jobs = [(prompt, way) for prompt in PROMPTS for way in WAYS]
    with opened(tmp_path, sequences=3) as model:
        expected = [model.generate(prompt, 16, logprobs=0, **way) for prompt, way in jobs]
        scoring = {"max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        (told,) = model.create_completion(PROMPTS[1], **scoring)["choices"]
        model.share()
        with ThreadPoolExecutor(len(jobs)) as pool:
            streams = [model.stream(prompt, 200, temperature=0) for prompt in PROMPTS]
            for one in streams:
                next(one)
            found = list(pool.map(lambda job: model.generate(job[0], 16, logprobs=0, **job[1]), jobs))
            for one in pool.map(lambda _: model.create_completion(PROMPTS[1], **scoring)["choices"][0], range(6)):
                assert one["text"] == told["text"] and one["logprobs"]["tokens"] == told["logprobs"]["tokens"]
                values, expected_values = (each["logprobs"]["token_logprobs"][1:] for each in (one, told))
                np.testing.assert_allclose(values, expected_values, atol=1e-3)
            del streams, one
        for mine, alone in zip(found, expected, strict=True):
            assert mine.ids == alone.ids and mine.text == alone.text
            np.testing.assert_allclose(mine.log_probs, alone.log_probs, atol=1e-3)
        steps = [0]
        run = model._decoder.body.decode
        model._decoder.body.decode = lambda *asked: steps.__setitem__(0, steps[0] + 1) or run(*asked)
        with ThreadPoolExecutor(3) as pool:
            endless = {"temperature": 0, "logit_bias": {model.token_eos(): -np.inf}}
            list(pool.map(lambda prompt: model.generate(prompt, 40, **endless), PROMPTS[:3]))
        assert steps[0] < 3 * 40 - 20, "steps are shared"
    with pytest.raises(InputError, match="closed"):
        model.generate("x", 3)


def test_reproducible_texts_are_to_the_last_bit_what_each_is_alone(tmp_path: Path) -> None:
    """Whoever asks at the same time, and whatever a sequence held before; log-probabilities and their errors, too."""
    jobs = [(prompt, way) for prompt in PROMPTS for way in WAYS]
    with opened(tmp_path, sequences=1) as model:
        expected = []
        for prompt, way in jobs:
            model.reset()
            expected.append(model.generate(prompt, 16, logprobs=2, **way))
    with opened(tmp_path, sequences=4) as model:
        model.share(reproducible=True)
        with ThreadPoolExecutor(len(jobs)) as pool:
            for _ in range(2):
                assert list(pool.map(lambda job: model.generate(job[0], 16, logprobs=2, **job[1]), jobs)) == expected


def test_what_goes_wrong_for_one_is_told_to_that_one(tmp_path: Path) -> None:
    with opened(tmp_path, sequences=2) as model:
        model.share()
        nothing = dict.fromkeys(range(model.n_vocab()), -np.inf)
        with ThreadPoolExecutor(2) as pool:
            right = pool.submit(model.generate, "Hello", 60, temperature=0)
            with pytest.raises(InputError, match="no token is left"):
                model.generate("ab", 3, logit_bias=nothing)
            assert right.result(60).ids
        decode = model._decoder.body.decode
        model._decoder.body.decode = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            model.generate("ab", 3)
        model._decoder.body.decode = decode
        assert model.generate("Hello", 60, temperature=0) == right.result()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """The command, in a process of its own."""

    def __init__(self, path: Path, *options: str) -> None:
        self.port = free_port()
        words = [sys.executable, "-W", "ignore", "-m", "headlong", "serve", str(path), "--port", str(self.port), *options]
        where = os.environ | {"HEADLONG_CACHE": str(path.parent)}
        self.said = path.with_suffix(".log")
        with self.said.open("w") as said:
            self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said, env=where)
        self.path = path
        self.url = f"http://127.0.0.1:{self.port}/v1"
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{self.url}/models", timeout=5).close()
                return
            except OSError:
                assert self.process.poll() is None, self.said.read_text()
                time.sleep(0.1)
        raise AssertionError("no answer")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("llama_cpp.server.app", reason="pip install 'headlong[serve]'")
    path = tiny_gguf.write(tmp_path_factory.mktemp("served") / "llama.gguf", "llama", head="Q8_0")
    found = Server(path, "--context", "512", "--sequences", "4", "--threads", "1", "--eps", "1e-4", "--reproducible")
    yield found
    if found.process.poll() is None:
        found.end()


@pytest.fixture(scope="module")
def alone(server: Server) -> Iterator[Model]:
    with Model(server.path, cache=server.path.parent, n_threads=1, n_ctx=512, eps=1e-4) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


def test_the_openai_client_reads_scores_and_texts(client: Any, alone: Model) -> None:
    ask: dict[str, Any] = {"model": "any", "prompt": "Hello ab", "temperature": 0}
    scored = client.completions.create(**ask, max_tokens=0, echo=True, logprobs=2)
    listed = scored.choices[0].logprobs
    assert scored.choices[0].text == "Hello ab" and scored.usage.completion_tokens == 0
    read, _ = alone.log_probs("Hello ab")
    assert listed.token_logprobs[0] is None and len(listed.tokens) == len(alone.tokenize(b"Hello ab", False))
    np.testing.assert_allclose(listed.token_logprobs[1:], read[-len(listed.tokens) + 1 :], atol=1e-3)
    assert "".join(listed.tokens) == "Hello ab" and listed.text_offset[0] == 0
    assert client.completions.create(**ask, max_tokens=0).choices[0].text == ""
    plain = {"repeat_penalty": 1.0}
    whole = client.completions.create(**ask, max_tokens=9, extra_body=plain).choices[0].text
    assert whole == alone.create_completion("Hello ab", max_tokens=9, temperature=0)["choices"][0]["text"]
    chunks = client.completions.create(**ask, max_tokens=9, stream=True, extra_body=plain)
    assert "".join(one.choices[0].text for one in chunks) == whole
    messages = [{"role": "user", "content": "Hello"}]
    talk = partial(client.chat.completions.create, model="any", max_tokens=5, temperature=0, extra_body=plain)
    chat = talk(messages=messages)
    expected = alone.create_chat_completion(messages, max_tokens=5, temperature=0)["choices"][0]["message"]["content"]
    assert chat.choices[0].message.content == expected
    assert "".join(one.choices[0].delta.content or "" for one in talk(messages=messages, stream=True)) == expected


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"suffix": "x"}, "infilling is not supported"),
    ({"prompt": ["a", "b"]}, "prompt is a list of several"),
    ({"prompt": "ab " * 900}, "maximum context length is 512"),
    ({"extra_body": {"min_tokens": 3}}, "a processor that sees every logit"),
    ({"max_tokens": -1}, "greater than or equal to 0"),
    ({"logit_bias": {"999999": 1}}, "logit_bias names the token 999999"),
]


@pytest.mark.parametrize(("asked", "why"), REFUSED, ids=["suffix", "several", "length", "processor", "negative", "token"])
def test_what_is_refused_says_why(client: Any, asked: dict[str, Any], why: str) -> None:
    import openai

    with pytest.raises((openai.BadRequestError, openai.UnprocessableEntityError), match=why):
        client.completions.create(**{"model": "any", "prompt": "Hello", "max_tokens": 2, **asked})


def test_a_refusal_is_one_line_of_a_400(client: Any) -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="gives no embeddings"):
        client.embeddings.create(model="any", input="Hello")
    with pytest.raises(openai.BadRequestError, match="Input should be a valid string") as refused:
        client.completions.create(model="any", prompt=[1, 2, 3], max_tokens=2)
    assert "\n" not in refused.value.body["message"] and ".py" not in refused.value.body["message"]


def test_a_port_that_is_taken_is_said_before_the_model_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "headlong", "serve", str(tmp_path / "none.gguf"), "--port", port]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} cannot be listened at" in done.stderr


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_what_a_stream_is_refused_comes_in_it(client: Any, kind: str) -> None:
    import openai

    asked = {"messages": [{"role": "user", "content": "Hello"}]} if kind == "chat" else {"prompt": "Hello"}
    create = client.chat.completions.create if kind == "chat" else client.completions.create
    chunks = create(**asked, model="any", logit_bias={"999999": 1}, stream=True)
    with pytest.raises(openai.APIError, match="logit_bias names the token 999999"):
        list(chunks)


def test_ten_clients_at_once_get_what_each_gets_alone(client: Any) -> None:
    """A short one of the run that the page tells of."""

    def ask(number: int) -> str:
        prompt, way = PROMPTS[number % len(PROMPTS)], WAYS[number % len(WAYS)]
        options = {"model": "any", "prompt": prompt, "max_tokens": 12, **way}
        if number % 2:
            return str(client.completions.create(**options).choices[0].text)
        return "".join(one.choices[0].text for one in client.completions.create(**options, stream=True))

    expected = [ask(number) for number in range(20)]
    with ThreadPoolExecutor(10) as pool:
        for _ in range(3):
            assert list(pool.map(ask, range(20))) == expected


@pytest.mark.filterwarnings("ignore")
def test_the_harness_scores_through_the_server(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``local-completions``, as it is: the scores of the model that is asked without a server."""
    pytest.importorskip("lm_eval")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from headlong.integrations.llama_cpp.lm_eval import HeadlongGguf

    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = server.path
    folder = tmp_path / "tokenizer"
    transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)
    remote = LocalCompletionsAPI(
        base_url=f"{server.url}/completions", model="any", tokenizer=str(folder), tokenizer_backend="huggingface",
        tokenized_requests=False, max_length=512, num_concurrent=4, max_retries=1,
    )  # fmt: skip
    asked = [Asked((f"Hello {word} ab", choice)) for word in PROMPTS[:3] for choice in (" one", " two three", " x")]
    mine = HeadlongGguf(str(path), n_ctx=512, n_threads=1, eps=1e-4, cache=str(path.parent))
    for (value, likeliest), (expected, best) in zip(remote.loglikelihood(asked), mine.loglikelihood(asked), strict=True):
        assert value == pytest.approx(expected, abs=2e-3) and likeliest == best
    mine.model.close()


class Asked:
    """An instance of the harness."""

    def __init__(self, args: Any) -> None:
        self.args = args


def test_an_end_loses_nothing(tmp_path: Path) -> None:
    """Requests that were begun are answered to their end, streams, too; new ones are not taken."""
    openai = pytest.importorskip("openai")
    pytest.importorskip("llama_cpp.server.app")
    path = tiny_gguf.write(tmp_path / "llama.gguf", "llama", head="Q8_0")
    server = Server(path, "--context", "2048", "--sequences", "2", "--threads", "1")
    client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
    ask: dict[str, Any] = {"model": "any", "prompt": "Hello", "max_tokens": 1500, "temperature": 0, "logit_bias": {"999": -100}}
    expected = client.completions.create(**ask).choices[0].text
    stream = client.completions.create(**ask, stream=True)
    first = next(stream).choices[0].text
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(client.completions.create, **ask)
        time.sleep(0.3)
        ender = threading.Thread(target=server.end)
        ender.start()
        rest = "".join(one.choices[0].text for one in stream)
        assert first + rest == expected and other.result(60).choices[0].text == expected
        ender.join(60)
    assert server.process.returncode in (0, -signal.SIGTERM)
    with pytest.raises(openai.APIConnectionError):
        client.completions.create(**ask)
