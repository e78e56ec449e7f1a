"""The door to the native module: no other folder imports ``headlong._native``.

    load_module         the module itself
    instruction_level   which level of the instruction set runs (``HEADLONG_ISA``)
    thread_count        on how many threads (``HEADLONG_THREADS``, ``OMP_NUM_THREADS``)
    readers             what answers questions: a layer's reader, blocks, experts, trees, a search over coordinates
    rows                passes over the rows of a layer: norms, codes, products
    answers             what searches that are no readers answer, by name
    arguments           hidden vectors in float64, masks from lists of ids
    losses              softmax cross-entropy over a link
"""

from headlong.arrays import round_up
from headlong.dtypes import Doubles
from headlong.native.answers import (
    DrawsOfExpert,
    FoundByBlocks,
    FoundByCoordinates,
    FoundOfExpert,
)
from headlong.native.arguments import mark, widened
from headlong.native.instruction_level import REFERENCE, isa, levels
from headlong.native.load_module import loaded, module
from headlong.native.losses import link_gradients, link_losses
from headlong.native.readers import (
    NativeReader,
    Reader,
    adaptive,
    blocks,
    code_reader,
    descent,
    experts,
    neighbours,
    rows_of,
)
from headlong.native.rows import (
    gumbels,
    logits,
    products,
    row_norms,
)
from headlong.native.thread_count import threads

__all__ = [
    "REFERENCE", "Doubles", "DrawsOfExpert", "FoundByBlocks", "FoundByCoordinates", "FoundOfExpert", "NativeReader", "Reader",
    "adaptive", "blocks", "code_reader", "descent", "experts", "gumbels", "isa", "levels", "link_gradients",
    "link_losses", "loaded", "logits", "mark", "module", "neighbours", "products", "round_up", "row_norms", "rows_of",
    "threads", "widened",
]  # fmt: skip
