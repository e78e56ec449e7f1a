"""Others that answer the same question, as contestants of the benchmark."""

from headlong.rivals import dense, graphs, search
from headlong.rivals.registry import RIVALS, Found, Rival, contestant, installed, rival

__all__ = ["RIVALS", "Found", "Rival", "contestant", "dense", "graphs", "installed", "rival", "search"]
