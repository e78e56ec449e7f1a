"""Every data set that headlong reads: one row each, and the one door to them::

    corpus = data.load("penn-treebank")              # in the folder that HEADLONG_DATA names
    corpus = data.load("/home/me/penn-treebank")     # a data set's own folder
    corpus = data.load("notes.txt")                  # the user's own text, a file or a folder of three

The shape of what comes back follows the row's kind: ``Corpus`` (text), ``Pairs`` or ``Images``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from headlong.demo.corpus import load as load_builtin
from headlong.errors import DataError
from studies.data.characters import load_casia
from studies.data.download import download
from studies.data.files import VARIABLE, DataFile, DataSet, Download, data_root, origin, verified
from studies.data.images import load_eurosat, load_mnist
from studies.data.rendered import load_rendered
from studies.data.text import (
    HELD_OUT_FOLDER,
    TRAIN_FOLDER,
    Corpus,
    Vocabulary,
    load_billion,
    load_plain,
    load_splits,
    recoded,
)
from studies.data.translation import load_iwslt, load_pairs

WIKITEXT_TEST = "sha256:d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"
WIKITEXT_VALID = "sha256:f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"
BILLION = "1-billion-word-language-modeling-benchmark-r13output"
MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
EUROSAT_URL = "https://huggingface.co/datasets/torchgeo/eurosat/resolve/c877bcd43f099cd0196738f714544e355477f3fd/"
IWSLT_URL = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/"
MULTI30K_URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/tok/"
PLACE = f"Put it into {VARIABLE}/"


def _builtin() -> Corpus:
    """The front door's corpus in the shape of the others: its held-out stream is cut into valid and test."""
    words, train, held_out = load_builtin()
    half = len(held_out) // 2
    return Corpus(Vocabulary(words), train, held_out[:half], held_out[half:])


_PTB = DataSet(
    "penn-treebank",
    "text",
    "Mikolov's preprocessed files (simple-examples.tgz, folder data/)",
    "LDC, research use; never redistributed",
    f"{PLACE}penn-treebank/, from simple-examples.tgz at www.fit.vutbr.cz/~imikolov/rnnlm/, if your LDC licence covers it.",
    (
        (
            DataFile("ptb.train.txt", "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            DataFile("ptb.valid.txt", "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            DataFile("ptb.test.txt", "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
    ),
    load_splits,
)
_WIKITEXT = DataSet(
    "wikitext-2",
    "text",
    "Merity et al. 2016 (wikitext-2-v1.zip, word level)",
    "CC BY-SA 3.0",
    f"{PLACE}wikitext-2/, or call studies.data.fetch('wikitext-2').",
    (
        (
            DataFile("train.txt", "sha256:728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89"),
            DataFile("valid.txt", WIKITEXT_VALID),
            DataFile("test.txt", WIKITEXT_TEST),
        ),
        (
            DataFile("wikitext-2/wiki.train.tokens"),
            DataFile("wikitext-2/wiki.valid.tokens", WIKITEXT_VALID),
            DataFile("wikitext-2/wiki.test.tokens", WIKITEXT_TEST),
        ),
    ),
    load_splits,
    (Download("https://wikitext.smerity.com/wikitext-2-v1.zip", "md5:542ccefacc6c27f945fb54453812b3cd", True),),
)
_BILLION = DataSet(
    "one-billion-word",
    "text",
    "Chelba et al. 2013 (statmt.org/lm-benchmark)",
    "that of the WMT 2011 news crawl, research use",
    f"{PLACE}one-billion-word/, or call studies.data.fetch('one-billion-word') (1.8 GB).",
    (
        (DataFile(f"{BILLION}/{TRAIN_FOLDER}"), DataFile(f"{BILLION}/{HELD_OUT_FOLDER}")),
        (DataFile(TRAIN_FOLDER), DataFile(HELD_OUT_FOLDER)),
    ),
    load_billion,
    (
        Download(
            f"http://www.statmt.org/lm-benchmark/{BILLION}.tar.gz",
            "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            True,
        ),
    ),
)
_IWSLT_TESTS = (
    DataFile("tst2012.en", "sha256:b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2"),
    DataFile("tst2012.vi", "sha256:01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0"),
    DataFile("tst2013.en", "sha256:3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df"),
    DataFile("tst2013.vi", "sha256:29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd"),
)
_IWSLT = DataSet(
    "iwslt15-en-vi",
    "pairs",
    "IWSLT 2015 English-Vietnamese as preprocessed by Stanford NMT",
    "TED talks, CC BY-NC-ND 4.0",
    f"{PLACE}iwslt15-en-vi/, or call studies.data.fetch('iwslt15-en-vi').",
    ((DataFile("train.en"), DataFile("train.vi"), *_IWSLT_TESTS), _IWSLT_TESTS),
    load_iwslt,
    tuple(
        Download(IWSLT_URL + name, checksum)
        for name, checksum in [
            ("train.en", None),
            ("train.vi", None),
            ("vocab.en", None),
            ("vocab.vi", None),
            *_IWSLT_TESTS,
        ]
    ),
)
_MULTI30K = DataSet(
    "multi30k",
    "pairs",
    "Elliott et al. 2016 (github.com/multi30k/dataset, task 1, lower-cased, normalised, tokenised)",
    "that of the Multi30k repository, research use",
    f"{PLACE}multi30k/: data/task1/tok/NAME.lc.norm.tok.LANGUAGE of the repository, as NAME.LANGUAGE.",
    (
        (
            DataFile("train.en", "sha256:08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
            DataFile("train.de", "sha256:cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
            DataFile("val.en", "sha256:46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
            DataFile("val.de", "sha256:97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
            DataFile("test_2016_flickr.en", "sha256:5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"),
            DataFile("test_2016_flickr.de", "sha256:c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"),
        ),
        tuple(
            DataFile(f"{name}.lc.norm.tok.{language}")
            for name in ("train", "val", "test_2016_flickr")
            for language in ("en", "de")
        ),
    ),
    load_pairs,
    tuple(
        Download(f"{MULTI30K_URL}{name}.lc.norm.tok.{language}", None)
        for name in ("train", "val", "test_2016_flickr")
        for language in ("en", "de")
    ),
)
_MNIST = DataSet(
    "mnist",
    "images",
    "LeCun, Cortes and Burges",
    "CC BY-SA 3.0",
    f"{PLACE}mnist/, or call studies.data.fetch('mnist').",
    (
        (DataFile("mnist.npz", "sha256:39b9b1ffaa0ba4d8995a616551f0966941fe02a3fe79ba4a9db7373db16d53ad"),),
        (
            DataFile("train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
            DataFile("train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
            DataFile("t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
            DataFile("t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
        ),
    ),
    load_mnist,
    (
        Download(f"{MNIST_URL}train-images-idx3-ubyte.gz", "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        Download(f"{MNIST_URL}train-labels-idx1-ubyte.gz", "md5:d53e105ee54ea40749a09fcbcd1e9432"),
        Download(f"{MNIST_URL}t10k-images-idx3-ubyte.gz", "md5:9fb629c4189551a2d022fa330f9573f3"),
        Download(f"{MNIST_URL}t10k-labels-idx1-ubyte.gz", "md5:ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
_EUROSAT = DataSet(
    "eurosat",
    "images",
    "Helber et al. 2018 (EuroSAT RGB, Sentinel-2)",
    "MIT (EuroSAT); Copernicus Sentinel terms for the data",
    f"{PLACE}eurosat/, or call studies.data.fetch('eurosat').",
    (
        (DataFile("eurosat_rgb_subset.tar", "sha256:d7ba83a86a53557bde28f89c1da44b0445a60d9efef6918fe8a72af324ac65e3"),),
        (DataFile("EuroSAT.zip", "md5:c8fa014336c82ac7804f0398fcb19387"),),
        (DataFile("2750"),),
    ),
    load_eurosat,
    (Download(f"{EUROSAT_URL}EuroSAT.zip", "md5:c8fa014336c82ac7804f0398fcb19387"),),
)
_CASIA = DataSet(
    "casia-hwdb",
    "images",
    "CASIA-HWDB 1.1 (nlpr.ia.ac.cn, offline handwritten Chinese characters)",
    "academic use on application; never redistributed",
    f"{PLACE}casia-hwdb/: HWDB1.1trn_gnt.zip and HWDB1.1tst_gnt.zip, unpacked (the .alz files inside them too). "
    "Without them, 'rendered-characters' stands in.",
    (
        (DataFile("HWDB1.1trn_gnt"), DataFile("HWDB1.1tst_gnt")),
        (DataFile("train"), DataFile("test")),
    ),
    load_casia,
)
_RENDERED = DataSet(
    "rendered-characters",
    "images",
    "drawn on this machine from free Debian fonts: a stand-in for casia-hwdb",
    "the fonts' own: OFL, Apache, GPL with font exception, Arphic Public License",
    "Install the fonts that the message names.",
    (),
    load_rendered,
)
_BUILTIN = DataSet(
    "builtin",
    "text",
    "the source and docstrings of the standard library of the running Python",
    "PSF",
    "Every Python install has it.",
    (),
    _builtin,
)
DATA_SETS = {
    row.name: row for row in (_BUILTIN, _PTB, _WIKITEXT, _BILLION, _IWSLT, _MULTI30K, _MNIST, _EUROSAT, _CASIA, _RENDERED)
}


class Loaded(NamedTuple):
    """What was read and the row that says whose it is."""

    name: str
    kind: str
    content: Any
    licence: str


def load(
    name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, vocabulary: Vocabulary | None = None
) -> Loaded:
    """A registered name, a path that ends in one, or the user's own text; ``root`` defaults to ``HEADLONG_DATA``.

    With ``vocabulary`` text comes in its ids and not in those of the text's own words.
    """
    path = Path(name)
    row = DATA_SETS.get(path.name)
    if row is None:
        if path.exists():
            return Loaded(path.name, "text", load_plain(path, vocabulary), "the user's own")
        raise DataError(f"{os.fspath(name)} is neither a file nor a data set; known are {', '.join(DATA_SETS)}")
    folder = path if os.fspath(name) != row.name or not row.layouts else data_root(root) / row.name
    content = _read(row, folder) if row.layouts else row.loader()
    if vocabulary is not None and isinstance(content, Corpus):
        content = recoded(content, vocabulary)
    return Loaded(row.name, row.kind, content, row.licence)


def _read(row: DataSet, folder: Path) -> Any:
    layout = verified(row, folder)
    try:
        return row.loader(folder, layout)
    except DataError as error:
        raise DataError(f"{error}. {origin(row, layout[0])}") from error


def fetch(name: str, root: str | os.PathLike[str] | None = None, progress: bool = True) -> Path:
    """Download a registered data set into the data folder; DataError says how to get it where that is not allowed."""
    if name not in DATA_SETS:
        raise DataError(f"{name!r} is not a data set; known are {', '.join(DATA_SETS)}")
    return download(DATA_SETS[name], data_root(root), progress)
