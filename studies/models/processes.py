"""One process, or several that ``torchrun`` started, behind the same four words: ``prepare``, ``backward``, ``gather``,
``share``. Several are run by Accelerate: each sees its part of every batch, gradients are averaged.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from torch import Tensor, nn

from headlong.errors import MissingPackageError
from studies.models.backbones.base import State
from studies.models.feeds import Share


class Processes(Protocol):
    """What the loop needs to know of the processes beside it."""

    share: Share

    def prepare(self, model: nn.Module) -> nn.Module: ...

    def backward(self, loss: Tensor) -> None: ...

    def gather(self, state: State) -> State: ...

    def wait(self) -> None: ...

    def close(self) -> None: ...


class Alone:
    """This process and no other."""

    share = Share()

    def prepare(self, model: nn.Module) -> nn.Module:
        return model

    def backward(self, loss: Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def gather(self, state: State) -> State:
        return state

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class Accelerated:
    """Data-parallel over the processes of ``torchrun``."""

    def __init__(self) -> None:
        try:
            from accelerate import Accelerator
        except ImportError as error:
            raise MissingPackageError(
                "training in several processes needs Accelerate: pip install '.[studies]'"
            ) from error
        self._accelerator: Any = Accelerator(cpu=True)  # batches and models stay on the CPU here
        self.share = Share(self._accelerator.process_index, self._accelerator.num_processes)

    def prepare(self, model: nn.Module) -> nn.Module:
        prepared: nn.Module = self._accelerator.prepare_model(model)
        return prepared

    def backward(self, loss: Tensor) -> None:
        self._accelerator.backward(loss)

    def gather(self, state: State) -> State:
        """The states of all processes, one after the other along the first axis."""
        return tuple(self._accelerator.gather(part) for part in state)

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()

    def close(self) -> None:
        """Leave the group; nothing is shared after that."""
        self._accelerator.end_training()


def processes() -> Processes:
    """``Accelerated`` where ``torchrun`` started more than one, else ``Alone``."""
    return Accelerated() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else Alone()
