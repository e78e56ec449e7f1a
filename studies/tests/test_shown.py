"""Rows of tables as they are shown."""

from __future__ import annotations

from studies.papers.shown import paper_table


def test_paper_rows_carry_the_verdict_and_what_was_published() -> None:
    lines = [
        {"setting": {"width": "D/8"}, "got": {"kl": 0.5}, "expected": {"kl": [0.1, 0.2, 0.0]}, "verdict": {"kl": "differs"}},
        {"setting": {"width": "D/4"}, "got": {"kl": 0.25}, "expected": {}, "verdict": {"kl": "no figure"}},
    ]
    assert list(paper_table(lines)[1]) == [("D/8", "0.5, differs (0.1 to 0.2)"), ("D/4", "0.25")]


def test_rows_that_differ_in_the_seed_are_one_row() -> None:
    lines = [
        {
            "setting": {"head": "a", "seed": str(seed)},
            "got": {"x": float(seed), "y": 3.0},
            "expected": {"x": (0, 1, 0.0)},
            "verdict": {"x": "matched" if seed == 1 else "differs", "y": "unpublished"},
        }
        for seed in (1, 2, 3)
    ]
    columns, rows = paper_table(lines)
    assert columns == ("head", "seeds", "x", "y")
    assert rows == [("a", "3", "2 ± 1, matched in 1 of 3 (0 to 1)", "3")]
