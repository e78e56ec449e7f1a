"""Minutes of streams in turns, threads and abandoned generators on one ``Model`` of a GGUF file: each text is what it is alone.

::

    python tests/storm/soak_model.py model.gguf --seconds 600

Two streams are read in turns by the main thread, which leaves a third one in the middle; six threads ask for whole texts,
chats and streams. Greedy texts and drawn ones are compared with those that the model wrote alone, token by token; the process
must not die. Prompts begin differently: of a common beginning a sequence keeps what another text left there, rounded in batches
of another size.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import sys
import threading
import time
from typing import Any

from headlong.integrations.llama_cpp import Model

SUBJECTS = ("river", "engine", "winter", "violin", "harbour", "theorem", "garden", "railway")
WAYS: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"seed": 7}, {"seed": 7, "top_k": 0, "top_p": 0.9})
LENGTH, THREADS = 24, 6


class Soak:
    def __init__(self, model: Model) -> None:
        self.model, self.texts, self.faults, self.left = model, 0, 0, 0
        self.jobs = [(f"{subject.title()}: a {subject} is", way) for subject in SUBJECTS for way in WAYS]
        self.alone: list[list[int]] = []
        for prompt, way in self.jobs:
            model.reset()
            self.alone.append(list(model.generate(prompt, LENGTH, **way).ids))
        self.chat = self.answer()
        self.ends = 0.0

    def answer(self) -> str:
        messages = [{"role": "user", "content": "Name a river."}]
        said = self.model.create_chat_completion(messages, max_tokens=LENGTH, temperature=0.0)
        return str(said["choices"][0]["message"]["content"])

    def compare(self, job: int, found: list[int]) -> None:
        self.texts += 1
        if found != self.alone[job]:
            self.faults += 1
            sys.stderr.write(f"{self.jobs[job]}: {found}, alone {self.alone[job]}\n")

    def stream(self, job: int) -> Any:
        prompt, way = self.jobs[job]
        return (token.id for piece in self.model.stream(prompt, LENGTH, **way) for token in piece.tokens)

    def ask(self, number: int) -> None:
        """A thread's work."""
        for turn in itertools.count(number):
            job = turn * 7 % len(self.jobs)
            prompt, way = self.jobs[job]
            if turn % 3 == 0:
                self.compare(job, list(self.stream(job)))
            elif turn % 11 == 0:
                self.faults += self.answer() != self.chat
            else:
                self.compare(job, list(self.model.generate(prompt, LENGTH, **way).ids))
            if time.monotonic() > self.ends:
                return

    def run(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        threads = [threading.Thread(target=self.ask, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for turn in itertools.count():
            pair = [turn % len(self.jobs), (turn + 5) % len(self.jobs)]
            left = self.stream((turn + 11) % len(self.jobs))
            next(left)  # and nobody reads on; every other time it is still there when the next is left
            streams, found = [self.stream(job) for job in pair], ([], [])  # type: ignore[var-annotated]
            for step in itertools.zip_longest(*streams):
                for so_far, token in zip(found, step, strict=True):
                    so_far += [] if token is None else [token]
            for job, tokens in zip(pair, found, strict=True):
                self.compare(job, tokens)
            self.left += 1
            if turn % 2:
                del left
                gc.collect()
            if time.monotonic() > self.ends:
                break
        for thread in threads:
            thread.join()


def main() -> int:
    asked = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    asked.add_argument("model")
    asked.add_argument("--seconds", type=float, default=600.0)
    asked.add_argument("--sequences", type=int, default=1)
    asked.add_argument("--threads", type=int, default=1)
    options = asked.parse_args()
    with Model(options.model, n_ctx=256, n_threads=options.threads, sequences=options.sequences) as model:
        soak = Soak(model)
        soak.run(options.seconds)
    sys.stdout.write(f"{soak.texts} texts, {soak.left} streams left in the middle, {soak.faults} faults\n")
    return int(soak.faults > 0)


if __name__ == "__main__":
    sys.exit(main())
