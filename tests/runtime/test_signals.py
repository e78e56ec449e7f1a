"""Ctrl-C inside a long call, and an interpreter that ends while threads are inside calls."""

from __future__ import annotations

import subprocess
import sys

import pytest

from thinned import every

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")

LONG = """
import signal, sys, threading, time
import numpy as np
import headlong as hl

method, verb, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
rng = np.random.default_rng(0)
layer = hl.Layer(rng.standard_normal((40_000, 96)).astype(np.float32))
engine = hl.compile(layer, method, threads=threads)
rows = rng.standard_normal((200_000, 96))
ask = {
    "topk": lambda some: engine.topk(some, 3, eps=1e-6), "lse": lambda some: engine.lse(some, eps=1e-6),
    "log_prob": lambda some: engine.log_prob(some, np.zeros((len(some), 1), int), eps=1e-6),
    "sample": lambda some: engine.sample(some, 3, top_p=0.9, seed=1),
}[verb]
"""

INTERRUPTED = LONG + """
expected = ask(rows[:5])
raised = []

def handler(*_):
    raised.append(time.process_time())
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, handler)
sent = []

def send():
    time.sleep(0.5)
    sent.append(time.process_time())
    signal.raise_signal(signal.SIGINT)  # on another thread: Python's main thread is to hear it

thread = threading.Thread(target=send)
thread.start()
try:
    ask(rows)
except KeyboardInterrupt:
    ended = time.process_time()
    thread.join()
    again = ask(rows[:5])
    assert all(np.array_equal(a, b) for a, b in zip(again[:2], expected[:2]))
    print(ended - sent[0])
else:
    print("not interrupted")
"""

LEFT = LONG + """
def forever():
    while True:
        ask(rows[:2000])

for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
time.sleep(0.5)
print("leaving", flush=True)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


SOON = 2.0
"""Seconds of processor time of each thread from the signal to the exception, a small part of a whole call's 70 and more. Calls
ask every tenth of a second, at a turn of the work that threads share; other programs may make a turn long."""
CODES = [("codes", verb) for verb in ("topk", "lse", "sample")]
CALLS = [("full", "topk"), ("full", "log_prob"), *CODES, ("adaptive", "topk")]


@pytest.mark.one_of("threads")
@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize(("method", "verb"), CALLS)
def test_an_interrupt_ends_a_long_batch(method: str, verb: str, threads: str) -> None:
    found = python(INTERRUPTED, method, verb, threads)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() != "not interrupted"
    assert float(found.stdout) < SOON * int(threads)


@pytest.mark.parametrize("verb", ["topk", "lse"])
def test_an_interrupt_ends_a_long_batch_in_pytorch_s_team(verb: str) -> None:
    pytest.importorskip("torch")
    before = "import torch\ntorch.set_num_threads(2)\nfrom headlong import native\nnative.loaded().tell_way(1)\n"
    after = "\nassert native.loaded().processors() < 2 or native.loaded().team_rounds() > 0\n"
    found = python(before + INTERRUPTED + after, "codes", verb, "2")
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < SOON * 2


@pytest.mark.parametrize(("method", "verb"), every(2, [CALLS[2], CALLS[0], CALLS[4], CALLS[5]]))
def test_the_interpreter_may_end_while_daemon_threads_are_inside_a_call(method: str, verb: str) -> None:
    for threads in ("1", "2"):
        found = python(LEFT, method, verb, threads)
        assert found.returncode == 0, f"exit status {found.returncode}\n{found.stderr}"
        assert found.stdout.split() == ["leaving"] and found.stderr == ""


def test_a_child_of_a_fork_is_interrupted_too() -> None:
    fork = """
import os
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.start()
"""
    found = python(INTERRUPTED.replace("\nthread.start()\n", fork), "codes", "topk", "2")
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < SOON * 2
