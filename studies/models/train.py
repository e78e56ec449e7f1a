"""The one training loop::

    for each batch:  loss, _, state = model(batch, state);  loss.backward();  clip;  optimiser.step()
    after an epoch:  measure on valid; keep the best weights; save

``FOLDER/last.safetensors`` is where the run stands, ``best.safetensors`` the model. Killed at any moment, the same call
goes on from the last checkpoint to the same result: batches and random numbers are functions of the step's number.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch

from headlong.errors import NonFiniteError, StoreError
from studies.models.backbones.base import Batch, State
from studies.models.checkpoint import Progress, load_weights, open_checkpoint, resume, save_checkpoint
from studies.models.evaluate import Figures, Tell, evaluate
from studies.models.jobs import Job
from studies.models.optimisers import build_optimiser, products, rate_at, set_rate

LAST, BEST = "last.safetensors", "best.safetensors"
PAUSE = 20.0
"""A step that takes longer than this and hardly any processor time was a machine put to sleep."""


class Run:
    """A job in its folder."""

    def __init__(self, job: Job, folder: Path, report: Tell | None = None) -> None:
        self.job, self.folder, self.training, self._report = job, folder, job.recipe.training, report
        self._optimiser = build_optimiser(job.model.parameters(), self.training)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made: {error}; give another folder with --out") from error
        self.progress, self._state = Progress(), State()
        if self._is_saved:
            self._state, self.progress = resume(folder / LAST, job, self._optimiser)

    @property
    def done(self) -> bool:
        return self.progress.epoch >= self.training.epochs

    def _losses(self) -> list[float]:
        return [entry["valid_loss"] for entry in self.progress.history]

    def fit(self) -> Figures:
        """Train to the end and measure the best model on the test set."""
        while not self.done:
            self._epoch()
        load_weights(open_checkpoint(self.folder / BEST)[0], self.job.model)
        return evaluate(self.job.model, self.job.test)

    def _epoch(self) -> None:
        progress, feed = self.progress, self.job.train
        steps = feed.steps(progress.epoch)
        steps = min(steps, self.training.epoch_steps or steps)
        self.job.model.train()
        while progress.step < steps:
            started, cpu = time.monotonic(), time.process_time()
            batch = feed.batch(progress.epoch, progress.step)
            rate = self._rate(steps)
            loss = self._step(batch, rate)
            progress.total += loss * len(batch.target)
            progress.count += len(batch.target)
            progress.step += 1
            self._clock(started, cpu)
            if self._report is not None:
                self._report(progress.epoch * steps + progress.step, self.training.epochs * steps)
            if progress.step % self.training.save_steps == 0 and progress.step < steps:
                self._save()
        self._close_epoch(steps)

    def _step(self, batch: Batch, rate: float) -> float:
        """One step on ``batch``, seeded by where the run stands; returns the loss."""
        progress, training = self.progress, self.training
        torch.manual_seed(_seed(training.seed, progress.epoch, progress.step))
        set_rate(self._optimiser, rate)
        self._optimiser.zero_grad(set_to_none=True)
        with products(training.bf16):
            loss, _, state = self.job.model(batch, self._state)
        value = float(loss.detach())
        if not math.isfinite(value):
            where = f"step {progress.step + 1} of epoch {progress.epoch + 1}"
            raise NonFiniteError(
                f"the loss is {value} at {where}; lower training.rate (now {training.rate:g}), or training.clip"
            )
        loss.backward()
        if training.clip:
            torch.nn.utils.clip_grad_norm_(self.job.model.parameters(), training.clip, foreach=True)
        self._optimiser.step()
        self._state = state if self.job.train.stateful else ()
        return value

    @property
    def _is_saved(self) -> bool:
        return (self.folder / LAST).exists()

    def _rate(self, steps: int) -> float:
        at = self.progress.epoch * steps + self.progress.step
        return rate_at(self.training, at, self.training.epochs * steps)

    def _close_epoch(self, steps: int) -> None:
        progress, job = self.progress, self.job
        started, cpu = time.monotonic(), time.process_time()
        figures = evaluate(job.model, job.valid)
        if figures.loss < min(self._losses(), default=math.inf):
            save_checkpoint(self.folder / BEST, job, None, (), progress)
        self._clock(started, cpu)
        entry = {
            "epoch": progress.epoch + 1,
            "train_loss": progress.total / progress.count,
            "valid_loss": figures.loss,
            "valid_perplexity": figures.perplexity,
            "rate": self._rate(steps),
            "seconds": round(progress.seconds, 1),
            "cpu_seconds": round(progress.cpu_seconds, 1),
        }
        progress.history.append(entry)
        progress.epoch, progress.step, progress.total, progress.count = progress.epoch + 1, 0, 0.0, 0
        self._state = ()
        self._save()

    def _save(self) -> None:
        save_checkpoint(self.folder / LAST, self.job, self._optimiser, self._state, self.progress)

    def _clock(self, started: float, cpu: float) -> None:
        wall, used = time.monotonic() - started, time.process_time() - cpu
        self.progress.cpu_seconds += used
        self.progress.seconds += used if wall > PAUSE and used < wall / 10 else wall


def _seed(seed: int, epoch: int, step: int) -> int:
    """Different for every step (below 2^24 in an epoch) and epoch (below 2^20); of large seeds the low bits."""
    return (((seed * 1009) % (1 << 19) << 20) + epoch) << 24 | step
