"""Every data set that the studies read: one row each, and the one door to them::

    corpus = load("penn-treebank")              # in the folder that HEADLONG_DATA names
    corpus = load("/home/me/penn-treebank")     # a data set's own folder
    corpus = load("notes.txt")                  # the user's own text, a file or a folder of three

The shape of what comes back follows the row's kind: ``Corpus`` (text), ``Pairs`` or ``Pictures``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from headlong.errors import DataError
from studies.data.files import DataFile, DataSet, data_root, verify
from studies.data.pictures import load_eurosat, load_mnist
from studies.data.text import load_plain, load_splits
from studies.data.translation import load_pairs

DATA_SETS = {
    row.name: row
    for row in (
        DataSet(
            "penn-treebank", "text", "Mikolov's simple-examples.tgz, folder data/", "LDC, research use; never redistributed",
            (
                DataFile("ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
                DataFile("ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
                DataFile("ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
            ),
            load_splits,
        ),
        DataSet(
            "wikitext-2", "text", "Merity et al. 2016 (wikitext-2-v1.zip, word level, as train.txt, ...)", "CC BY-SA 3.0",
            (
                DataFile("train.txt", "728c77e87e176af4730f9a80fc6008bcaff421a7202c1c048877c0eec3685f89"),
                DataFile("valid.txt", "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
                DataFile("test.txt", "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
            ),
            load_splits,
        ),
        DataSet(
            "multi30k", "pairs", "Elliott et al. 2016 (task 1, NAME.lc.norm.tok.LANGUAGE as NAME.LANGUAGE)", "research use",
            (
                DataFile("train.en", "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119"),
                DataFile("train.de", "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505"),
                DataFile("val.en", "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec"),
                DataFile("val.de", "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00"),
                DataFile("test_2016_flickr.en", "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2"),
                DataFile("test_2016_flickr.de", "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4"),
            ),
            load_pairs,
        ),
        DataSet(
            "mnist", "pictures", "LeCun, Cortes and Burges (as mnist.npz)", "CC BY-SA 3.0",
            (DataFile("mnist.npz", "39b9b1ffaa0ba4d8995a616551f0966941fe02a3fe79ba4a9db7373db16d53ad"),), load_mnist,
        ),
        DataSet(
            "eurosat", "pictures", "Helber et al. 2019 (9,000 of the 27,000 RGB pictures, at random)", "MIT; Sentinel terms",
            (DataFile("eurosat_rgb_subset.tar", "d7ba83a86a53557bde28f89c1da44b0445a60d9efef6918fe8a72af324ac65e3"),),
            load_eurosat,
        ),
    )
}  # fmt: skip


class Loaded(NamedTuple):
    """What was read and the row that says whose it is."""

    name: str
    kind: str
    content: Any
    licence: str


def load(name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> Loaded:
    """A registered name, a path that ends in one, or the user's own text; ``root`` defaults to ``HEADLONG_DATA``."""
    path = Path(name)
    row = DATA_SETS.get(path.name)
    if row is None:
        if path.exists():
            return Loaded(path.name, "text", load_plain(path), "the user's own")
        raise DataError(f"{os.fspath(name)} is neither a file nor a data set; known are {', '.join(DATA_SETS)}")
    folder = path if os.fspath(name) != row.name else data_root(root) / row.name
    verify(row, folder)
    return Loaded(row.name, row.kind, row.loader(folder, row.files), row.licence)
