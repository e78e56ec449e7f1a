"""Translation quality: corpus BLEU by sacrebleu, with its signature::

    score_translations(job) -> {"bleu": 36.1, "signature": "nrefs:1|case:mixed|...", "sentences": 1000}

The corpora are tokenised and lower-cased by their publishers, so BLEU is counted on those words as they are
(``tokenize="none"``); the signature says so.
"""

from __future__ import annotations

from typing import Any

import torch

from headlong.errors import MissingPackageError, OptionError
from studies.data.translation import Pairs
from studies.models.backbones.seq2seq import Seq2Seq
from studies.models.feeds import PairFeed
from studies.models.jobs import Job, sentence_ends

LONGEST = 60


def translations(job: Job) -> tuple[list[str], list[str]]:
    """The model's sentences for the test set, and the references, in the test set's order."""
    pairs, feed, backbone = job.data.content, job.test, job.model.backbone
    if not (isinstance(pairs, Pairs) and isinstance(feed, PairFeed) and isinstance(backbone, Seq2Seq)):
        raise OptionError(f"the model {job.recipe.model} on {job.data.name} does not translate; expected pairs and seq2seq")
    start, end = sentence_ends(pairs)
    job.model.eval()
    found: dict[int, str] = {}
    for step, rows in enumerate(feed.groups(0)):
        longest = min(LONGEST, 2 * len(feed.source(step)) + 10)
        words = backbone.translate(feed.source(step), job.model.head.predict, start, end, longest)
        for row, ids in zip(rows.tolist(), words, strict=True):
            found[row] = " ".join(pairs.target.words[i] for i in ids)
    return [found[row] for row in range(len(found))], pairs.test.reference


def score_translations(job: Job) -> dict[str, Any]:
    """BLEU of the test set."""
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise MissingPackageError("BLEU needs sacrebleu: pip install '.[studies]'") from error
    with torch.no_grad():
        hypotheses, references = translations(job)
    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(hypotheses, [references])
    return {"bleu": score.score, "signature": str(metric.get_signature()), "sentences": len(hypotheses)}
