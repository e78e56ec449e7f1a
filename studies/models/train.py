"""The one training loop::

    for each batch:  loss, _, state = model(batch, state);  loss.backward();  clip;  optimiser.step()
    after an epoch:  measure on valid; keep the best weights
    in the end:      FOLDER/best.safetensors

A run that is stopped leaves nothing behind and begins anew.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from headlong.errors import NonFiniteError, StoreError
from studies.models.backbones.base import Batch, State
from studies.models.checkpoint import load_weights, named_tensors, open_model, save_model
from studies.models.evaluate import Figures, Tell, evaluate
from studies.models.jobs import Job
from studies.models.optimisers import build_optimiser, products, rate_at, set_rate

BEST = "best.safetensors"


class Run:
    """A job in its folder, from the job's own weights or those of the file ``start``; ``history`` has an entry an epoch."""

    def __init__(self, job: Job, folder: Path, report: Tell | None = None, start: Path | None = None) -> None:
        self.job, self.folder, self.training, self._report = job, folder, job.recipe.training, report
        if start is not None:
            load_weights(open_model(start)[0], job.model)
        self._optimiser = build_optimiser(job.model.parameters(), self.training)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error}; give another folder with --out") from error
        self.history: list[dict[str, float]] = []

    @property
    def best(self) -> float:
        """The lowest loss on validation so far."""
        return min((entry["valid_loss"] for entry in self.history), default=math.inf)

    @property
    def cpu_seconds(self) -> float:
        return self.history[-1]["cpu_seconds"]

    def fit(self) -> Figures:
        """Train to the end, keep the best model, and measure it on the test set."""
        started, cpu, kept = time.monotonic(), time.process_time(), named_tensors(self.job.model)
        for epoch in range(self.training.epochs):
            train_loss, rate = self._epoch(epoch)
            valid = evaluate(self.job.model, self.job.valid)
            if valid.loss < self.best:
                kept = {name: value.clone() for name, value in named_tensors(self.job.model).items()}
            losses = {"train_loss": train_loss, "valid_loss": valid.loss, "valid_perplexity": valid.perplexity, "rate": rate}
            seconds = {"seconds": time.monotonic() - started, "cpu_seconds": time.process_time() - cpu}
            self.history.append({"epoch": epoch + 1, **losses, **{name: round(value, 1) for name, value in seconds.items()}})
        for name, value in named_tensors(self.job.model).items():
            value.copy_(kept[name])
        save_model(self.folder / BEST, self.job)
        return evaluate(self.job.model, self.job.test)

    def _epoch(self, epoch: int) -> tuple[float, float]:
        """The mean loss of its batches, and the last rate."""
        feed, state, total, count, rate = self.job.train, State(), 0.0, 0, 0.0
        steps = min(feed.steps(epoch), self.training.epoch_steps or feed.steps(epoch))
        self.job.model.train()
        for step in range(steps):
            at, batch = epoch * steps + step, feed.batch(epoch, step)
            rate = rate_at(self.training, at, self.training.epochs * steps)
            loss, state = self._step(batch, state if feed.stateful else (), rate, at)
            total, count = total + loss * len(batch.target), count + len(batch.target)
            if self._report is not None:
                self._report(at + 1, self.training.epochs * steps)
        return total / count, rate

    def _step(self, batch: Batch, state: State, rate: float, at: int) -> tuple[float, State]:
        """One step on ``batch``; the loss, and the state after it."""
        set_rate(self._optimiser, rate)
        self._optimiser.zero_grad(set_to_none=True)
        with products(self.training.bf16):
            loss, _, state = self.job.model(batch, state)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the loss is {value} at step {at + 1}; lower training.rate (now {self.training.rate:g}), or training.clip"
            )
        loss.backward()
        if self.training.clip:
            torch.nn.utils.clip_grad_norm_(self.job.model.parameters(), self.training.clip, foreach=True)
        self._optimiser.step()
        return value, state
