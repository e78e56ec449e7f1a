"""Corpora and data sets, in reading order: ``files`` (a row, its checks), ``registry`` (all rows, ``load``, ``fetch``),
the loaders ``text``, ``translation``, ``images``, ``characters``, ``rendered``, and ``builtin``, which needs nothing but
the running Python. Importing this opens no file and no connection.
"""

from studies.data.registry import DATA_SETS as DATA_SETS
from studies.data.registry import Loaded as Loaded
from studies.data.registry import fetch as fetch
from studies.data.registry import load as load
