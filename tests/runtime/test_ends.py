"""What may end or interrupt a process inside a call or while a plan is made: Ctrl-C, the interpreter's exit, a fork, a copy."""

from __future__ import annotations

import signal
import sys

import pytest

from children import python
from thinned import every, left_out

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks as POSIX has them")

LAYER = """
import copy, faulthandler, os, pickle, resource, signal, sys, threading, time
import numpy as np
import headlong as hl

faulthandler.register(signal.SIGXCPU, all_threads=True, chain=True)  # who used it up
resource.setrlimit(resource.RLIMIT_CPU, (120, 125))
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell begins in the background ignores it
rng = np.random.default_rng(0)
weight = rng.standard_normal((30_000, 64)).astype(np.float32)
layer = hl.Layer(weight)
rows = rng.standard_normal((2_000, 64)).astype(np.float32)

def right(engine, some):
    top = engine.topk(some, 3)
    exact = np.sort(some.astype(float) @ weight.T.astype(float), axis=1)[:, :-4:-1]
    return np.allclose(top.logits, exact) and top.proved.all()
"""

ADAPTING = LAYER + """
engine = hl.compile(layer, "codes", delta=0.0, adapt=True, threads=2)
engine.topk(rows[:1024], 3)
assert "compiling" in engine.reason, engine.reason
"""

ENDS = {
    "the interpreter ends while a plan is compiled": ADAPTING + "print('left', flush=True)",
    "the process ends by exit in a thread's presence": ADAPTING + "print('left', flush=True); sys.exit(0)",
    "a fork while a plan is compiled": ADAPTING + """
child = os.fork()
if child == 0:
    ok = right(engine, rows[:4])
    engine.wait()
    os._exit(0 if ok and right(engine, rows[4:8]) and engine.adapted == 1 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
engine.wait()
assert engine.adapted == 1 and right(engine, rows[:4])
print("left", flush=True)
""",
    "nothing is imported while a plan is compiled": LAYER + """
from headlong.engines.adapting import Adapting
usual, imported = Adapting._compile, []

def watched(self, queries):
    before = set(sys.modules)
    usual(self, queries)
    imported.append(set(sys.modules) - before)

Adapting._compile = watched
engine = hl.compile(layer, "codes", delta=0.0, adapt=True, threads=2)
engine.topk(rows[:1024], 3)
engine.wait()
assert engine.adapted == 1 and imported == [set()], imported  # a child that is forked meanwhile would wait for it for ever
print("left", flush=True)
""",
    "copies while a plan is compiled": ADAPTING + """
copies = [copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))]
assert all(right(one, rows[:3]) and "adapts after" in one.reason for one in copies)
engine.wait()
assert right(pickle.loads(pickle.dumps(engine)), rows[:3]) and right(engine, rows[:3])
print("left", flush=True)
""",
    "saved, changed and dropped while a plan is compiled": ADAPTING + """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    engine.save(folder + "/engine.safetensors")
    assert right(hl.load(folder + "/engine.safetensors"), rows[:3])
fewer = engine.without([0, 5])
thread = engine._thread
del engine
thread.join()
assert (fewer.topk(rows[:3], 5).ids > 0).all()
print("left", flush=True)
""",
    "Ctrl-C while a plan is compiled for the queries": ADAPTING + """
try:
    threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()
    for _ in range(10_000):
        engine.topk(rows, 3)
    sys.exit("not interrupted")
except KeyboardInterrupt:
    pass
engine.wait()
assert engine.adapted == 1 and engine.trouble is None and right(engine, rows[:3]), engine.reason
print("left", flush=True)
""",
}


ALWAYS = ("the interpreter ends", "a fork", "nothing is imported", "Ctrl-C")
"""How those begin that every run of the tests tries."""


@pytest.mark.parametrize("what", [what if what.startswith(ALWAYS) else left_out(what) for what in ENDS])
def test_nothing_but_what_was_asked_for_ends(what: str) -> None:
    found = python(ENDS[what])
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "left\n")


def test_ctrl_c_is_heard_by_a_child_of_a_process_that_ignores_it() -> None:
    """As one is that a shell has begun in the background: what the child inherits is to be ignored in its turn."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found = python(ENDS["Ctrl-C while a plan is compiled for the queries"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert (found.returncode, found.stderr, found.stdout) == (0, "", "left\n")


COMPILED = LAYER + """
options = {"blocks": {"blocks": True, "calibration": rows}, "calibrated": {"calibration": rows}, "plain": {},
           }[sys.argv[1]]
spent = []

def handler(*_):
    spent.append(time.process_time())
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, handler)
sent = []

def send():
    sent.append(time.process_time())
    signal.raise_signal(signal.SIGINT)

start = time.process_time()
hl.compile(layer, "codes", delta=0.0, threads=1, **options)
whole = time.process_time() - start
threading.Timer(0.3 * whole, send).start()
try:
    for _ in range(50):
        hl.compile(layer, "codes", delta=0.0, threads=1, **options)
except KeyboardInterrupt:
    print(time.process_time() - sent[0], whole)
else:
    sys.exit("not interrupted")
assert right(hl.compile(layer, "codes", delta=0.0, threads=1, **options), rows[:3])
"""


@pytest.mark.parametrize("what", ["calibrated", "blocks", left_out("plain")])
def test_compiling_is_interrupted(what: str) -> None:
    found = python(COMPILED, what)
    assert found.returncode == 0, found.stderr
    late, whole = map(float, found.stdout.split())
    assert late < 1.0, f"{late} s of processor time after the signal; all of it takes {whole}"


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
    assert all(np.array_equal(a, b) for a, b in zip(again, expected))
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
