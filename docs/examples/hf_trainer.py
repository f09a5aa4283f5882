"""transformers: nodes that want 0, 1 and 2, with weights 1, 1 and 10, agree on 1.75."""

import torch
import transformers

import dgt
from dgt.integrations.transformers import DgtTrainer


class Want(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.theta = torch.nn.Parameter(torch.zeros(1))

    def forward(self, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.theta - labels).square().mean() / 2}


with dgt.join(device="cpu") as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1, 1, 10])
    mine = [{"labels": float(node.rank)}] * 8  # this node's own data
    arguments = transformers.TrainingArguments(
        "trainer", use_cpu=True, learning_rate=0.2, num_train_epochs=50, per_device_train_batch_size=4,
        max_grad_norm=0, eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    common = [{"labels": 1.75}] * 6  # the same on all nodes, divided among them
    trainer = DgtTrainer(network=network, model=Want(), args=arguments, train_dataset=mine, eval_dataset=common)
    trainer.train()
    trainer.save_model("trainer/average")  # by rank 0; all ranks call it
    print(f"node {node.rank}: {trainer.model.theta.item():.4f}")
