"""What an output layer can say at all: the rank of its log-probabilities, and classes that it can never put first."""

from headlong.capacity.page import Capacity, as_json, capacity, html_page, link_plot, table
from headlong.capacity.ranks import Ranks, effective_rank, log_probs, press_rank, ranks
from headlong.capacity.winners import Winners, winners

__all__ = [
    "Capacity", "Ranks", "Winners", "as_json", "capacity", "effective_rank", "html_page", "link_plot", "log_probs",
    "press_rank", "ranks", "table", "winners",
]  # fmt: skip
