"""Lightning and Fabric on a network of nodes: strategies that wrap no model and split no data.

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights)
    trainer = lightning.Trainer(strategy=DgtStrategy(network), max_epochs=10)       # or Fabric(FabricStrategy(network))
    trainer.fit(module, loader)              # configure_optimizers returns dgt.GradientTracking(..., network=network)

Evaluation and checkpoints are made with the network average; rank 0 writes. A checkpoint that is loaded again starts
all nodes at the average, with new trackers; `dgt.Checkpoints` continues bit by bit.
"""

from __future__ import annotations

import contextlib
import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.integrations.state import (
    averaged_state,
    group_settings,
    is_decentralized,
    missing,
    refuse_groups,
    restore_group_settings,
)
from dgt.processes.agreement import broadcast_text

try:
    from lightning.fabric.strategies import ParallelStrategy as FabricParallelStrategy
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.strategies import ParallelStrategy
except ImportError as error:
    raise missing("Lightning", "lightning", error) from None

SUMS = ("sum", dist.ReduceOp.SUM)
MEANS = ("mean", "avg", None)
EXTREMES = {"max": torch.amax, "min": torch.amin, dist.ReduceOp.MAX: torch.amax, dist.ReduceOp.MIN: torch.amin}


class _Ranks:
    """Ranks and collective operations of the network's node, for both strategies."""

    network: Network

    def _use(self, network: Network) -> None:
        refuse_groups(network, type(self).__name__)
        self.network = network
        rank_zero_only.rank = network.node.rank  # who logs and writes, under launchers other than torchrun too

    @property
    def root_device(self) -> torch.device:
        return self.network.node.device

    @property
    def global_rank(self) -> int:
        return self.network.node.rank

    @property
    def local_rank(self) -> int:
        return self.network.node.placement.local_rank

    @property
    def node_rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return self.network.node.size

    @property
    def is_global_zero(self) -> bool:
        return self.network.node.is_main

    @property
    def distributed_sampler_kwargs(self) -> None:
        """No DistributedSampler: a node's loader is its own."""
        return None

    def barrier(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
        with self.network.node.during(f"Lightning's barrier({name or ''})"):
            self.network.node.barrier()

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        if sync_grads:
            raise ConfigError("all_gather(sync_grads=True): gradients stay on their node; leave sync_grads out")
        return self.network.node.all_gather(tensor)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Rank 0's tensor, path, or what JSON can say: nothing that comes from another rank is unpickled."""
        node = self.network.node
        if src != 0:
            raise ConfigError(f"broadcast(src={src}): from rank 0 only")
        if isinstance(obj, torch.Tensor):
            return node.all_reduce(obj if node.is_main else obj.zero_())
        try:
            text = json.dumps(str(obj) if isinstance(obj, Path) else obj)
        except TypeError:
            kind = type(obj).__name__
            raise ConfigError(f"broadcast: a {kind} cannot be sent; give a tensor or plain data") from None
        received = json.loads(broadcast_text(node, text))
        return Path(received) if isinstance(obj, Path) else received

    def _reduced(self, tensor: Any, reduce_op: Any) -> Any:
        """Sum, mean, max or min over the ranks, in place as torch does it; what is no tensor stays as it is."""
        if not isinstance(tensor, torch.Tensor):
            return tensor
        node = self.network.node
        if reduce_op in EXTREMES:
            return tensor.copy_(EXTREMES[reduce_op](node.all_gather(tensor), dim=0))
        if reduce_op not in (*SUMS, *MEANS):
            raise ConfigError(f"reduce_op={reduce_op}: sum, mean, max or min")
        node.all_reduce(tensor)
        return tensor if reduce_op in SUMS else tensor.copy_(tensor / node.size)


class DgtStrategy(_Ranks, ParallelStrategy):
    """For `lightning.Trainer(strategy=...)`: every rank a node with its own data, no DDP.

    network            the `dgt.Network` of the optimizer
    evaluate_average   validate, test and predict with the network average, else with the node's own model
    options            checkpoint_io and precision_plugin, as for Lightning's own strategies
    """

    strategy_name = "dgt"
    is_distributed = True  # so that `self.log(..., sync_dist=True)` has an effect

    def __init__(self, network: Network, evaluate_average: bool = True, **options: Any) -> None:
        super().__init__(parallel_devices=[network.node.device], **options)
        self._use(network)
        self._evaluate_average, self._average = evaluate_average, contextlib.ExitStack()

    def connect(self, model: Any) -> None:
        super().connect(model)
        model.trainer._accelerator_connector.use_distributed_sampler = False

    def model_to_device(self) -> None:
        self.lightning_module.to(self.root_device)

    def setup_precision_plugin(self) -> None:
        """Without a scaler nothing is unscaled: clip, which Lightning refuses to optimizers that could unscale."""
        super().setup_precision_plugin()
        if getattr(self.precision_plugin, "scaler", self) is None:
            self.precision_plugin.clip_gradients = types.MethodType(Precision.clip_gradients, self.precision_plugin)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return self._reduced(tensor, reduce_op)

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Around every backward of an accumulated step but its last: buckets are not exchanged yet."""
        with contextlib.ExitStack() as stack:
            for optimizer in filter(is_decentralized, self.optimizers):
                stack.enter_context(optimizer.accumulate())
            yield

    # ------------------------------------------------------------------------------ the average, to evaluate and save

    def lightning_module_state_dict(self) -> dict[str, Any]:
        return averaged_state(self.network, self.lightning_module)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return group_settings(optimizer)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            restore_group_settings(optimizer, state)

    def _begin(self) -> None:
        if self._evaluate_average:
            self._average.enter_context(self.network.average(self.lightning_module))

    def _end(self) -> None:
        self._average.close()

    on_validation_start = on_test_start = on_predict_start = _begin
    on_validation_end = on_test_end = on_predict_end = _end

    def on_exception(self, exception: BaseException) -> None:
        with contextlib.suppress(ConfigError):
            self._average.close()


class FabricStrategy(_Ranks, FabricParallelStrategy):
    """For `lightning.Fabric(strategy=...)`: as `DgtStrategy`; `fabric.save` writes the average.

    network   the `dgt.Network` of the optimizer
    options   checkpoint_io and precision, as for Fabric's own strategies
    """

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(parallel_devices=[network.node.device], **options)
        self._use(network)
        self._optimizers: list[Any] = []
        self._backward_sync_control = self  # for `fabric.no_backward_sync`

    def module_to_device(self, module: torch.nn.Module) -> None:
        module.to(self.root_device)

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return self._reduced(tensor, reduce_op)

    def setup_optimizer(self, optimizer: Any) -> Any:
        self._optimizers.append(optimizer)
        return optimizer

    @contextlib.contextmanager
    def no_backward_sync(self, module: torch.nn.Module, enabled: bool) -> Iterator[None]:
        """Around every backward of an accumulated step but its last: buckets are not exchanged yet."""
        with contextlib.ExitStack() as stack:
            for optimizer in filter(is_decentralized, self._optimizers if enabled else ()):
                stack.enter_context(optimizer.accumulate())
            yield

    def get_module_state_dict(self, module: torch.nn.Module) -> dict[str, Any]:
        return averaged_state(self.network, module)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        return group_settings(optimizer)

    def load_checkpoint(self, path: Any, state: Any = None, *args: Any, **kwargs: Any) -> dict[str, Any]:
        if not isinstance(state, dict):
            return super().load_checkpoint(path, state, *args, **kwargs)
        optimizers = {name: part for name, part in state.items() if is_decentralized(part)}
        others = {name: part for name, part in state.items() if name not in optimizers}
        rest = super().load_checkpoint(path, others, *args, **kwargs)
        state.update(others)  # plain values are replaced
        for name, optimizer in optimizers.items():
            restore_group_settings(optimizer, rest.pop(name))
        return rest
