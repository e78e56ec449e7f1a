"""Log-probabilities of many texts beside one by one, and lm-evaluation-harness over them beside transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headlong.errors import IdError, OptionError
from tiny_gguf import opened

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")


NEAR = 2e-3
"""What float32 layers round otherwise in batches of other sizes, and 2 eps."""
QUESTIONS = [[5, 9, 300, 41], [5, 9, 300, 41, 77, 8, 12, 640, 3, 2, 8, 17, 31, 900], [5, 9, 12], [700, 701]]
CHOICES = [[10], [11, 12], [11, 13, 14], [15, 16, 17, 18]]


def texts() -> list[tuple[list[int], int]]:
    found = [([*question, *choice], len(question)) for question in QUESTIONS for choice in CHOICES]
    return [*found, (QUESTIONS[1], 1), found[5], (found[5][0], 2)]


@pytest.mark.parametrize("sequences", [1, 3, 8])
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "gemma3", "falcon-h1"])  # a soft-cap, a window, a recurrent memory
def test_texts_at_once_have_the_scores_that_each_has_alone(tmp_path: Path, family: str, sequences: int) -> None:
    with opened(tmp_path, family, sequences=sequences) as model:
        expected = [model.log_probs(tokens)[0][start - 1 :] for tokens, start in texts()]
        for _ in range(2):  # what sequences hold of the first time is of use, or in no way
            found = dict(model.scores(texts()))
            assert sorted(found) == list(range(len(texts())))
            for place, (tokens, start) in enumerate(texts()):
                score = found[place]
                np.testing.assert_allclose(score.log_probs, expected[place], atol=NEAR)
                assert len(score.likeliest) == len(tokens) - start and (score.errors <= 1e-4).all()
        best = model.generate(QUESTIONS[0], 3, temperature=0).ids
        ((_, score),) = model.scores([([*QUESTIONS[0], *best], len(QUESTIONS[0]))])
        assert score.likeliest.all()


def test_what_texts_begin_with_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(question + choice, len(question)) for question in ([7] * 40, [7] * 30 + [9] * 30) for choice in CHOICES]
    with opened(tmp_path, sequences=4) as model:
        decoded: list[int] = []
        decode = model._body.decode
        monkeypatch.setattr(model._body, "decode", lambda rows, *where: decoded.append(len(rows)) or decode(rows, *where))
        list(model.scores(asked))
    ends = sum(len(choice) - 1 for choice in CHOICES)
    again = 2 * len(CHOICES) * 8  # tokens that some have in common are not worth a step of their own
    assert 40 + 30 + 2 * ends <= sum(decoded) <= 40 + 30 + 2 * ends + again and len(decoded) <= 6


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, n_ctx=256) as model:
        assert len(dict(model.scores([([5] * 257, 1)]))[0].log_probs) == 256, "the last token need not be decoded"
        for text in (([5] * 258, 1), ([5, 6], 0), ([5, 6], 2), ([5], 1)):
            with pytest.raises(OptionError):
                list(model.scores([text]))
        for text in (([5, 1000], 1), ([1000, 5], 1)):
            with pytest.raises(IdError):
                list(model.scores([text]))
