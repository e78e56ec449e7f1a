"""Several who ask one ``Model``: streams in turns, threads, generators that nobody reads on. Each text is what it is alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headlong.errors import InputError
from tiny_gguf import opened

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model  # noqa: E402

PROMPTS = [[17, 301, 42], [999 - 3, 5, 77, 640, 3, 250], [8, 9], [300, 301, 302, 303]]
WAYS: list[dict[str, Any]] = [{"temperature": 0.0}, {"seed": 5, "temperature": 1.0, "top_k": 0}]
LENGTH = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with opened(tmp_path_factory.mktemp("models"), sequences=2) as found:
        yield found


def alone(model: Model, prompt: Any, **way: Any) -> list[int]:
    model.reset()
    return list(model.generate(prompt, LENGTH, **way).ids)


def ids(pieces: Any) -> list[int]:
    return [token.id for piece in pieces for token in piece.tokens]


@pytest.mark.parametrize("way", WAYS, ids=["greedy", "drawn"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "falcon-h1"])  # attention, of a window, and with a recurrent memory
def test_streams_in_turns_are_what_they_are_alone(family: str, way: dict[str, Any], tmp_path: Path) -> None:
    with opened(tmp_path, family) as model:
        expected = [alone(model, prompt, **way) for prompt in PROMPTS]
        model.reset()
        streams = [model.stream(prompt, LENGTH, **way) for prompt in PROMPTS]
        found: list[list[int]] = [[] for _ in PROMPTS]
        for _ in range(LENGTH + 1):
            for stream, so_far in zip(streams, found, strict=True):
                so_far += ids(piece for piece in [next(stream, None)] if piece is not None)
        assert found == expected and max(map(len, found)) > 10


def test_an_abandoned_stream_is_nobodys_business(model: Model) -> None:
    expected = [alone(model, prompt, temperature=0) for prompt in PROMPTS[:2]]
    model.reset()
    stream = model.stream(PROMPTS[0], LENGTH, temperature=0)
    first = ids([next(stream)])
    assert list(model.generate(PROMPTS[1], LENGTH, temperature=0).ids) == expected[1]
    assert model._decoder._owners[0]() is None, "what is done need not be put away"
    assert list(model.generate(PROMPTS[:2], LENGTH, temperature=0)[1].ids) == expected[1]
    assert len(model.log_probs(PROMPTS[1])[0]) == len(PROMPTS[1]) - 1
    assert first + ids(stream) == expected[0]
    stream = model.stream(PROMPTS[0], LENGTH, temperature=0)
    next(stream)
    del stream
    assert model._decoder._owners[0]() is None
    assert alone(model, PROMPTS[0], temperature=0) == expected[0]


def test_a_stream_goes_on_after_what_others_do_to_the_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = alone(model, PROMPTS[1], temperature=0)
    stream = model.stream(PROMPTS[1], LENGTH, temperature=0)
    found = ids([next(stream)])
    model.reset()  # decoded anew
    found += ids([next(stream)])
    model.hidden(PROMPTS[2])
    found += ids([next(stream)])
    model.generate(PROMPTS[0], 3)
    monkeypatch.setattr(type(model._body), "load", lambda body, sequence, state: body.keep(sequence, 0) and False)
    assert found + ids(stream) == expected


def test_threads_have_their_own_texts(model: Model) -> None:
    jobs = [(prompt, way) for prompt in PROMPTS[:3] for way in WAYS]
    expected = [alone(model, prompt, **way) for prompt, way in jobs]
    found: list[Any] = [None] * len(jobs)

    def ask(place: int) -> None:
        prompt, way = jobs[place]
        texts = []
        for turn in range(4):
            if turn % 2:
                texts.append(list(model.generate(prompt, LENGTH, **way).ids))
            else:
                texts.append(ids(model.stream(prompt, LENGTH, **way)))
        found[place] = texts

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [[one] * 4 for one in expected]


def test_chat_prompts_of_threads_are_their_own(model: Model) -> None:
    """A prompt is made by a chat handler, which asks for a completion: nobody else's is caught for it."""
    messages = [[{"role": "user", "content": f"Hello {'ab' * number}"}] for number in range(6)]
    expected = [model.words.chat_prompt(one)[0] for one in messages]
    found: list[Any] = [None] * 6

    def ask(place: int) -> None:
        found[place] = []
        for _ in range(8):
            found[place] += [model.words.chat_prompt(messages[place])[0] == expected[place]]
            answer = model.create_chat_completion(messages[place], max_tokens=2, temperature=0.0)
            found[place] += [answer["usage"]["prompt_tokens"] == len(expected[place])]

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [[True] * 16] * 6


def test_a_closed_model_is_refused(tmp_path: Path) -> None:
    model = opened(tmp_path)
    stream = model.stream(PROMPTS[0], LENGTH)
    next(stream)
    other = model.stream(PROMPTS[1], LENGTH)
    model.close()
    calls = (model.reset, lambda: model.generate([5], 3), lambda: model.hidden([5]), lambda: model.create_completion("a"))
    for ask in (lambda: next(stream), lambda: next(other), *calls):
        with pytest.raises(InputError, match="the model was closed; make a new Model"):
            ask()
    model.close()
