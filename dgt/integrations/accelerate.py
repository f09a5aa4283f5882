"""Hugging Face Accelerate on a network of nodes: an `Accelerator` that wraps no model and splits no data.

accelerator = NodeAccelerator()
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dgt.errors import ConfigError
from dgt.integrations.state import is_decentralized, missing, refuse_groups

try:
    from accelerate import Accelerator
    from accelerate.data_loader import prepare_data_loader
    from accelerate.scheduler import AcceleratedScheduler
except ImportError as error:
    raise missing("Accelerate", "accelerate", error) from None


class NodeAccelerator(Accelerator):
    """An `accelerate.Accelerator` for optimizers of dgt, with the same arguments; `prepare`, `accumulate`, `backward`,
    `clip_grad_norm_`, mixed precision and trackers work as ever.

    A prepared model is not wrapped in DDP; a prepared loader gives this node its own data, on its device; a prepared
    scheduler steps once per step. `gather_for_metrics` is for loaders that are the same on all ranks: `split(loader)`
    divides one. `save_state` is refused, because it keeps rank 0's trackers only: `dgt.Checkpoints` keeps every node's.
    """

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        return super().prepare_model(model, device_placement, evaluation_mode=True)  # which only leaves DDP out

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        if not is_decentralized(optimizer):
            return super().prepare_optimizer(optimizer, device_placement)
        refuse_groups(optimizer.network, "NodeAccelerator")
        if optimizer.network.node.size != self.num_processes:
            raise ConfigError(
                f"NodeAccelerator: Accelerate sees {self.num_processes} rank of {optimizer.network.node.size}, so each "
                "would log and write: say cpu=True (to Trainer use_cpu=True) where there is no GPU, start with torchrun"
            )
        return super().prepare_optimizer(optimizer, device_placement=False)  # its buffers are where the parameters are

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        if getattr(data_loader, "_is_accelerate_prepared", False):
            return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
        prepared = prepare_data_loader(
            data_loader,
            self.device,
            num_processes=1,  # as far as this loader is concerned
            process_index=0,
            put_on_device=self.device_placement if device_placement is None else device_placement,
            rng_types=None,  # every node shuffles for itself
            dispatch_batches=False,
            use_seedable_sampler=self.use_seedable_sampler,
            data_seed=self.dataloader_config.data_seed,
            non_blocking=self.non_blocking,
            use_stateful_dataloader=self.use_stateful_dataloader,
        )
        self._dataloaders.append(prepared)
        return prepared

    def split(self, loader: Any) -> Any:
        """A loader that is the same on all ranks, for evaluation: its batches are divided among them, as Accelerate
        does it; `gather_for_metrics` puts the results together."""
        return super().prepare_data_loader(loader)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        if getattr(scheduler, "_is_accelerate_prepared", False):
            return super().prepare_scheduler(scheduler)
        own = [each for each in self._optimizers if getattr(scheduler, "optimizer", None) is each.optimizer]
        prepared = AcceleratedScheduler(
            scheduler,
            own or self._optimizers,
            step_with_optimizer=self.step_scheduler_with_optimizer,
            split_batches=True,  # else it would step as often as there are ranks
        )
        self._schedulers.append(prepared)
        return prepared

    @contextlib.contextmanager
    def no_sync(self, model: Any) -> Iterator[None]:
        """Around every backward of an accumulated step but its last: buckets are not exchanged yet."""
        with contextlib.ExitStack() as stack:
            for optimizer in self._optimizers:
                if is_decentralized(optimizer.optimizer):
                    stack.enter_context(optimizer.optimizer.accumulate())
            yield

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        raise ConfigError(
            "save_state: would keep the trackers of rank 0 only; dgt.Checkpoints(directory, network, model=model, "
            "optimizer=optimizer) keeps those of every node, network.save_average(path, model) the model"
        )
