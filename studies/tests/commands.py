"""Calls ``python -m studies`` within the process that tests it."""

from __future__ import annotations

import contextlib
import io
import os
from typing import NamedTuple

from headlong.bench.measure import Progress
from studies.__main__ import main


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def ran(*words: str) -> Ran:
    """What the command said. Threads that it claims for its whole process are given back."""
    before, out, err = dict(os.environ), io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(["--threads", "1", *words])
            except SystemExit as end:
                status = int(end.code or 0)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Ran(status, out.getvalue(), err.getvalue())


def silent(_: str) -> Progress:
    return lambda done, total: None
