"""Lightning: nodes that want 0, 1 and 2, with weights 1, 1 and 10, agree on 1.75."""

import lightning
import torch

import dgt
from dgt.integrations.lightning import DgtStrategy


class Want(lightning.LightningModule):
    def __init__(self, network: dgt.Network) -> None:
        super().__init__()
        self.network, self.theta = network, torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return (self.theta - batch[0]).square().mean() / 2

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("distance", (self.theta - 1.75).abs().max(), sync_dist=True)  # of the average model

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return dgt.GradientTracking(self.parameters(), lr=0.2, network=self.network)


with dgt.join(device="cpu") as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1, 1, 10])
    mine = torch.utils.data.TensorDataset(torch.full((8, 1), float(node.rank)))  # this node's own data
    loader = torch.utils.data.DataLoader(mine, batch_size=4, shuffle=True)

    module = Want(network)
    best = lightning.pytorch.callbacks.ModelCheckpoint("lightning", "best", monitor="distance")
    trainer = lightning.Trainer(
        strategy=DgtStrategy(network), max_epochs=50, callbacks=[best], logger=False, enable_progress_bar=False
    )
    trainer.fit(module, dgt.even_steps(loader, node), loader)
    print(f"node {node.rank}: {module.theta.item():.4f}")
