"""The door to the native module: no other folder imports ``headlong._native``.

    load_module         the module itself
    instruction_level   which level of the instruction set runs (``HEADLONG_ISA``)
    thread_count        on how many threads (``HEADLONG_THREADS``, ``OMP_NUM_THREADS``)
    executors           what answers questions: a plan's executor, blocks, experts, trees, a search over coordinates
    rows                passes over the rows of a layer: norms, codes, products
    answers             what native code answers, by name
    arguments           hidden vectors in float64, masks from lists of ids
    losses              softmax cross-entropy over a link
"""

from headlong.arrays import round_up
from headlong.dtypes import Doubles
from headlong.native.answers import (
    DrawsOfExpert,
    FoundByBlocks,
    FoundByCoordinates,
    FoundDraws,
    FoundEntropy,
    FoundLse,
    FoundOfExpert,
    FoundTopK,
)
from headlong.native.arguments import Mask, mark, widened
from headlong.native.executors import (
    Executor,
    adaptive,
    blocks,
    code_reader,
    descent,
    direct_call,
    executor,
    experts,
    is_native,
    neighbours,
    reader,
)
from headlong.native.instruction_level import REFERENCE, isa, levels
from headlong.native.load_module import loaded, module
from headlong.native.losses import link_gradients, link_losses
from headlong.native.rows import (
    gumbels,
    logits,
    products,
    row_norms,
)
from headlong.native.thread_count import threads

__all__ = [
    "REFERENCE", "Doubles", "DrawsOfExpert", "Executor", "FoundByBlocks", "FoundByCoordinates", "FoundDraws",
    "FoundEntropy", "FoundLse", "FoundOfExpert", "FoundTopK", "Mask", "adaptive", "blocks", "code_reader",
    "descent", "direct_call", "executor", "experts", "gumbels", "is_native", "isa", "levels",
    "link_gradients", "link_losses", "loaded", "logits", "mark", "module", "neighbours", "products", "reader", "round_up",
    "row_norms", "threads", "widened",
]  # fmt: skip
