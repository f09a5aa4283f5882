"""What each framework makes of a few steps, against the plain loop: run by torchrun, one JSON file per rank.

    torchrun --nproc-per-node 3 -m tests.distributed.frameworks lightning

First the example of docs/ as it stands, then checks where nodes still differ: after a few steps.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dgt
from dgt.processes.node import Node
from tests.pages import EXAMPLES

WEIGHTS = [1, 1, 10]
SIZES = [6, 4, 8]  # samples of the nodes
SEEN = "seen"


def network_of(node: Node) -> dgt.Network:
    return dgt.Network(node, dgt.graphs.ring(node.size), WEIGHTS)


class Model(torch.nn.Module):
    """(theta - wanted)^2 / 2, which notes what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(1))
        self.wanted: list[float] = []
        self.thetas: list[float] = []

    def forward(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.wanted += labels.flatten().tolist()
        self.thetas.append(self.theta.item())
        return {"loss": (self.theta - labels).square().mean() / 2}


def plain(node: Node, rates: list[float]) -> tuple[float, float]:
    """Theta of this node, and the network average, after one step with each of these rates."""
    network, model = network_of(node), Model()
    optimizer = dgt.GradientTracking(model.parameters(), lr=rates[0], network=network)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model(torch.full((2, 1), float(node.rank)))["loss"].backward()
        optimizer.step()
    return model.theta.item(), average(network, model)


def average(network: dgt.Network, model: torch.nn.Module) -> float:
    with network.average(model):
        return next(model.parameters()).item()


def stepped_twice(network: dgt.Network, folder: str, step: Callable[[], None], **parts: Any) -> tuple[float, float]:
    """Theta after a step from here, and after the same step from a checkpoint that was made here."""
    checkpoints = dgt.Checkpoints(folder, network, minutes=0, **parts)
    checkpoints.save(2)
    found = []
    for _ in range(2):
        step()
        checkpoints.network.before_reading[0]()
        found.append(next(parts["model"].parameters()).item())
        assert checkpoints.resume() == 2
    return found[0], found[1]


def own_loader(node: Node) -> torch.utils.data.DataLoader:
    data = torch.utils.data.TensorDataset(torch.full((SIZES[node.rank], 1), float(node.rank)))
    return torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)


# ----------------------------------------------------------------------------------------------------------- frameworks


def accelerate(node: Node) -> dict[str, Any]:
    from dgt.integrations.accelerate import NodeAccelerator

    accelerator, network, model = NodeAccelerator(cpu=True, gradient_accumulation_steps=2), network_of(node), Model()
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network, bucket_mb=1, model=model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    wrapped, steps, loader, rates = accelerator.prepare(model, optimizer, own_loader(node), scheduler)
    batches = iter(dgt.ResumableLoader(loader.dataset, node, batch_size=2))
    for _ in range(4):  # two steps of two batches
        (wanted,) = next(batches)
        with accelerator.accumulate(wrapped):
            accelerator.backward(wrapped(wanted)["loss"])
            steps.step()
            rates.step()
            steps.zero_grad()
    optimizer.drain()
    found = {"theta": model.theta.item(), "lr": optimizer.param_groups[0]["lr"]}
    found["plain"], found["average"] = plain(node, [0.1, 0.09])
    found["unwrapped"] = wrapped is model
    found[SEEN] = [len(loader), *(value.item() for (batch,) in loader for value in batch)]

    def step() -> None:
        for _ in range(2):
            with accelerator.accumulate(wrapped):
                accelerator.backward(wrapped(torch.full((2, 1), float(node.rank)))["loss"])
                steps.step()
                steps.zero_grad()

    network.save_average("average.pt", model)
    found["resumed"] = stepped_twice(network, "exact", step, model=wrapped, optimizer=steps, scheduler=rates)
    found["saved"] = torch.load("average.pt")["theta"].item() if node.is_main else found["average"]
    common = accelerator.split(torch.utils.data.DataLoader(torch.arange(7.0), batch_size=2))
    found["split"] = [value for batch in common for value in accelerator.gather_for_metrics(batch).tolist()]
    try:
        accelerator.save_state("state")
    except dgt.ConfigError as error:
        found["refused"] = str(error)
    return found


def transformers(node: Node) -> dict[str, Any]:
    import transformers as hf

    from dgt.integrations.transformers import DgtTrainer

    class Labels(torch.utils.data.Dataset):
        def __init__(self, labels: list[float]) -> None:
            self.labels = labels

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> dict[str, float]:
            return {"labels": self.labels[index]}

    network = network_of(node)

    def trained(folder: str, steps: int, resume: bool = False) -> Any:
        arguments = hf.TrainingArguments(
            folder, use_cpu=True, learning_rate=0.1, max_steps=6, per_device_train_batch_size=2, max_grad_norm=0,
            weight_decay=0.0, eval_strategy="steps", eval_steps=2, save_steps=2, report_to="none", disable_tqdm=True,
            logging_strategy="steps", logging_steps=1,
        )  # fmt: skip
        # unequal samples within a node: the order of batches counts
        mine = Labels([node.rank + 0.01 * sample for sample in range(SIZES[node.rank])])
        trainer = DgtTrainer(
            network=network, model=Model(), args=arguments, train_dataset=mine, eval_dataset=Labels([1.75] * 7),
            callbacks=[Stop(steps)],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    class Stop(hf.TrainerCallback):
        def __init__(self, after: int) -> None:
            self.after = after

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            control.should_training_stop = state.global_step >= self.after

    whole = trained("whole", 6)
    trained("halves", 2)
    halves = trained("halves", 6, resume=True)
    model, history = whole.model, whole.state.log_history
    found = {"theta": model.theta.item(), "resumed": halves.model.theta.item(), "average": average(network, model)}
    found["loss"] = [entry["eval_loss"] for entry in history if "eval_loss" in entry][-1]
    found[SEEN] = [round(value, 2) for value in model.wanted if value != 1.75]
    whole.save_model("saved")
    from safetensors.torch import load_file

    node.barrier()
    found["saved"] = load_file("saved/model.safetensors")["theta"].item()
    found["lr"] = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    found["files"] = sorted(file.name for file in Path("halves/checkpoint-6").iterdir())
    found["printed"] = sum(isinstance(each, hf.PrinterCallback) for each in whole.callback_handler.callbacks)
    # nothing but labels of one value: the same numbers as the plain loop with the schedule of Trainer
    whole.train_dataset = Labels([float(node.rank)] * SIZES[node.rank])
    whole.optimizer = whole.lr_scheduler = None
    torch.nn.init.zeros_(model.theta)
    whole.train()
    found["constant"] = model.theta.item()
    found["plain"] = plain(node, found["lr"][:6])[0]
    return found | {"language model": language_model(network)}


def language_model(network: dgt.Network) -> list[float]:
    """A small one with tied weights, all ways to exchange less at once: how far the saved one is from the average."""
    import transformers as hf

    from dgt.integrations.transformers import DgtTrainer

    draw = torch.Generator().manual_seed(network.node.rank)
    mine = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (12, 8), generator=draw)]
    arguments = hf.TrainingArguments(
        "language", use_cpu=True, max_steps=4, per_device_train_batch_size=2, gradient_accumulation_steps=2,
        max_grad_norm=0, weight_decay=0.01, learning_rate=0.01, save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    config = hf.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=32, n_positions=8, bos_token_id=0, eos_token_id=1)
    trainer = DgtTrainer(
        network=network, model=hf.GPT2LMHeadModel(config), args=arguments, train_dataset=mine,
        options={"wire": "bfloat16", "local_steps": 2, "bucket_mb": 1},
    )  # fmt: skip
    trainer.train()
    trainer.save_model("language/average")
    network.node.barrier()
    saved = hf.GPT2LMHeadModel.from_pretrained("language/average").state_dict()
    with network.average(trainer.model):
        held = trainer.model.state_dict()
        return [(saved[name] - held[name]).abs().max().item() for name in held]


def lightning(node: Node) -> dict[str, Any]:
    import lightning as pl

    from dgt.integrations.lightning import DgtStrategy

    class Module(pl.LightningModule):
        def __init__(self, network: dgt.Network, bucket_mb: int = 1) -> None:
            super().__init__()
            self.network, self.model, self.bucket_mb = network, Model(), bucket_mb

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            return self.model(batch[0])["loss"]

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            evaluated.append(self.model.theta.item())
            self.log("rank", float(node.rank), sync_dist=True, batch_size=len(batch[0]))

        def configure_optimizers(self) -> Any:
            optimizer = dgt.GradientTracking(
                self.parameters(), lr=0.1, network=self.network, bucket_mb=self.bucket_mb, model=self.model
            )
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    network, evaluated, options = network_of(node), [], {"logger": False, "enable_progress_bar": False}
    options["enable_model_summary"] = False
    keep = pl.pytorch.callbacks.ModelCheckpoint("kept", "last", monitor="rank", save_top_k=1)
    module, loader = Module(network), own_loader(node)

    def trainer(batches: int, **more: Any) -> Any:
        return pl.Trainer(
            strategy=DgtStrategy(network), max_epochs=1, limit_train_batches=batches, accumulate_grad_batches=2,
            num_sanity_val_steps=0, **options, **more,
        )  # fmt: skip

    first = trainer(4, callbacks=[keep])
    first.fit(module, dgt.even_steps(loader, node), own_loader(node))
    found = {
        "theta": module.model.theta.item(),
        "evaluated": evaluated[-1],
        "rank": first.callback_metrics["rank"].item(),
    }
    found["plain"], found["average"] = plain(node, [0.1, 0.09])
    found[SEEN] = sorted(set(module.model.wanted))
    saved = torch.load("kept/last.ckpt", weights_only=False)
    found["saved"] = saved["state_dict"]["model.theta"].item()
    found["sampler"] = type(loader.sampler).__name__
    again = Module(network)
    second = trainer(4)
    second.fit_loop.max_epochs = 2
    second.fit(again, dgt.even_steps(own_loader(node), node), own_loader(node), ckpt_path="kept/last.ckpt")
    found["lr"] = second.optimizers[0].param_groups[0]["lr"]
    found["begun at"] = again.model.thetas[0]
    narrow = Module(network, bucket_mb=0)
    trainer(4, precision="bf16-mixed", gradient_clip_val=100.0).fit(narrow, dgt.even_steps(own_loader(node), node))
    found["bfloat16"] = narrow.model.theta.item()
    return found


def fabric(node: Node) -> dict[str, Any]:
    import lightning as pl

    from dgt.integrations.lightning import FabricStrategy

    network, model = network_of(node), Model()
    own = pl.Fabric(strategy=FabricStrategy(network))
    own.launch()
    raw = dgt.GradientTracking(model.parameters(), lr=0.1, network=network, bucket_mb=1, model=model)
    wrapped, optimizer = own.setup_module(model), own.setup_optimizers(raw)
    loader = own.setup_dataloaders(own_loader(node))
    batches = iter(dgt.even_steps(loader, node))
    for _ in range(2):
        optimizer.zero_grad()
        with own.no_backward_sync(wrapped):
            own.backward(wrapped(next(batches)[0])["loss"] / 2)
        own.backward(wrapped(next(batches)[0])["loss"] / 2)
        optimizer.step()
    raw.drain()
    found = {"theta": model.theta.item(), SEEN: sorted(set(model.wanted))}
    found["plain"], found["average"] = plain(node, [0.1, 0.1])

    def step() -> None:
        optimizer.zero_grad()
        own.backward(wrapped(torch.full((2, 1), float(node.rank)))["loss"])
        optimizer.step()

    found["resumed"] = stepped_twice(network, "exact", step, model=wrapped, optimizer=optimizer)
    raw.param_groups[0]["lr"] = 0.05
    own.save("fabric_state.ckpt", {"model": wrapped, "optimizer": optimizer, "step": 2})
    raw.param_groups[0]["lr"] = 0.7
    state = {"model": wrapped, "optimizer": optimizer, "step": 0}
    own.load("fabric_state.ckpt", state)
    found |= {"saved": model.theta.item(), "lr": raw.param_groups[0]["lr"], "step": state["step"]}
    own_rank = torch.tensor(float(node.rank))
    found["reduced"] = [own.all_reduce(own_rank.clone(), reduce_op=op).item() for op in ("mean", "sum", "max")]
    found["gathered"] = own.all_gather(own_rank).tolist()
    found["heard"] = own.broadcast({"from": node.rank}), str(own.broadcast(Path(f"/rank/{node.rank}")))
    return found


EXAMPLE = {
    "accelerate": "accelerate_loop.py", "transformers": "hf_trainer.py", "lightning": "lightning_module.py",
    "fabric": "fabric_loop.py",
}  # fmt: skip


def main(name: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / EXAMPLE[name]), run_name="__main__")
    check: Callable[[Node], dict[str, Any]] = globals()[name]
    with dgt.join(device="cpu") as node:
        found = check(node) | {"example": printed.getvalue()}
        Path(f"rank{node.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
