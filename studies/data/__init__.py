"""Corpora and data sets, in reading order: ``files`` (a row, its checks), ``registry`` (all rows, ``load``), the loaders
``text``, ``translation`` and ``pictures``.
"""

from studies.data.registry import DATA_SETS as DATA_SETS
from studies.data.registry import Loaded as Loaded
from studies.data.registry import load as load
