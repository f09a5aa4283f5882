"""Hugging Face's `Trainer` on a network of nodes, each with its own `train_dataset`.

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights)
    trainer = DgtTrainer(network=network, model=model, args=arguments, train_dataset=mine, eval_dataset=common)
    trainer.train()

Evaluation and saved models are the network average. A checkpoint also has a file per node, with which a run on as many
nodes goes on exactly.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from dgt.algorithms import DecentralizedOptimizer, GradientTracking
from dgt.algorithms.machinery.base import Base
from dgt.data.sampler import EpochSampler
from dgt.errors import ConfigError
from dgt.exchange.network import Network
from dgt.integrations.accelerate import NodeAccelerator
from dgt.integrations.state import missing, refuse_groups

try:
    from transformers import Trainer
except ImportError as error:
    raise missing("transformers", "transformers", error) from None

log = logging.getLogger(__name__)

SCHEDULER = "scheduler.pt"  # as Trainer itself names it


class DgtTrainer(Trainer):
    """A `transformers.Trainer` for one node, with these arguments besides those of `Trainer`, all by keyword:

    network    the `dgt.Network`
    algorithm  class of the optimizer, made with learning_rate and weight_decay of the training arguments
    options    further arguments of it, such as {"wire": "bfloat16"}; a base that has betas takes adam_beta1, adam_beta2
               and adam_epsilon of the training arguments, unless its base_options say otherwise

    `train_dataset` is this node's own, and is not split. All nodes make the same number of steps, as many as the
    largest data set has; the others start over. `eval_dataset` is the same on all nodes, and its batches are divided
    among them.
    """

    optimizer: Any

    def __init__(
        self,
        *,
        network: Network,
        algorithm: type[DecentralizedOptimizer] = GradientTracking,
        options: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        refuse_groups(network, type(self).__name__)
        self.network, self._algorithm, self._options = network, algorithm, dict(options or {})
        super().__init__(**arguments)
        # else losses would be divided by the tokens of all nodes: a node would count by its tokens, not by its weight
        self.args.average_tokens_across_devices = False
        if self.args.max_grad_norm and network.node.is_main:
            log.warning(
                "max_grad_norm=%g clips the gradient of every node for itself, which moves the optimum where nodes "
                "disagree; max_grad_norm=0 leaves it out",
                self.args.max_grad_norm,
            )

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = NodeAccelerator  # Trainer names the class itself

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        if self.optimizer is None:
            decayed = set(self.get_decay_parameter_names(self.model))
            trained = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
            groups = [
                {"params": [each for name, each in trained if name in decayed], "weight_decay": self.args.weight_decay},
                {"params": [each for name, each in trained if name not in decayed], "weight_decay": 0.0},
            ]
            self.optimizer = self._algorithm(
                [group for group in groups if group["params"]],
                lr=self.args.learning_rate,
                network=self.network,
                model=self.model,
                **self._options_with_arguments(),
            )
        return self.optimizer

    def _options_with_arguments(self) -> dict[str, Any]:
        kind, own = self._options.get("base"), dict(self._options.get("base_options") or {})
        if kind is None:
            return self._options
        known = Base(kind, own).defaults
        if "betas" in known:
            arguments = {"betas": (self.args.adam_beta1, self.args.adam_beta2), "eps": self.args.adam_epsilon}
            own = {key: value for key, value in arguments.items() if key in known} | own
        return self._options | {"base_options": own}

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        """Of this node's gradient; Trainer would measure it by clipping at infinity, when buckets have left already."""
        if grad_norm is not None:
            return super()._get_grad_norm(model, grad_norm)
        return torch.nn.utils.get_total_norm([each.grad for each in model.parameters() if each.grad is not None])

    # ------------------------------------------------------------------------------------------------------------- data

    def _get_train_sampler(self, train_dataset: Any = None) -> torch.utils.data.Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        strategy = getattr(self.args, "train_sampling_strategy", "random")
        if strategy not in ("random", "sequential") or getattr(self.args, "group_by_length", False):
            raise ConfigError("DgtTrainer: train_sampling_strategy is random or sequential")
        if not hasattr(dataset, "__len__"):
            return None
        sizes = self.network.node.all_gather(len(dataset)).tolist()
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return EpochSampler(len(dataset), seed, self.network.node.rank, max(sizes), shuffle=strategy == "random")

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        with self._split():
            return super().get_eval_dataloader(*args, **kwargs)

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        with self._split():
            return super().get_test_dataloader(*args, **kwargs)

    @contextlib.contextmanager
    def _split(self) -> Iterator[None]:
        """Loaders that are prepared inside are divided among the ranks."""
        self.accelerator.prepare = self.accelerator.split
        try:
            yield
        finally:
            del self.accelerator.prepare

    # ----------------------------------------------------------------------------------------------------- the average

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        with self.network.average(self.model):
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """The network average, written by rank 0; all ranks call it."""
        with self.network.average(self.model):
            super().save_model(*args, **kwargs)

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Every node its own model and trackers, rank 0 the scheduler."""
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        self._own_optimizer.drain()
        state = {"model": self.model.state_dict(), "optimizer": self._own_optimizer.state_dict()}
        _write(state | {"network": self._facts()}, Path(output_dir, self._own_file))
        if self.args.should_save:
            _write(self.lr_scheduler.state_dict(), Path(output_dir, SCHEDULER))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """This node's model and trackers, if the checkpoint is of this network; else it goes on from the average."""
        if checkpoint is None:
            return
        file = Path(checkpoint, self._own_file)
        state = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
        exact = state.get("network") == self._facts()
        scheduler = Path(checkpoint, SCHEDULER)
        if scheduler.is_file():
            self.lr_scheduler.load_state_dict(torch.load(scheduler, weights_only=True))
        if self.network.node.all_gather(int(exact)).all():
            self.model.load_state_dict(state["model"])
            self._own_optimizer.load_state_dict(state["optimizer"])
            return
        for group, lr in zip(self.optimizer.param_groups, self.lr_scheduler.get_last_lr(), strict=True):
            group["lr"] = lr
        if self.network.node.is_main:
            log.warning("%s is not of these nodes: all start at its average, with new trackers", checkpoint)

    @property
    def _own_optimizer(self) -> Any:
        return getattr(self.optimizer, "optimizer", self.optimizer)

    @property
    def _own_file(self) -> str:
        return f"node_{self.network.node.rank}.pt"

    def _facts(self) -> dict[str, str]:
        return self.network.facts | {"size": str(self.network.node.size)}


def _write(state: Any, path: Path) -> None:
    draft = path.with_name(path.name + ".part")
    torch.save(state, draft)
    draft.replace(path)
