"""Fabric: nodes that want 0, 1 and 2, with weights 1, 1 and 10, agree on 1.75."""

import lightning
import torch

import dgt
from dgt.integrations.lightning import FabricStrategy

with dgt.join(device="cpu") as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1, 1, 10])
    mine = torch.utils.data.TensorDataset(torch.full((8, 1), float(node.rank)))  # this node's own data

    fabric = lightning.Fabric(strategy=FabricStrategy(network))
    fabric.launch()
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(dgt.GradientTracking(model.parameters(), lr=0.2, network=network))
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(mine, batch_size=4, shuffle=True))

    for epoch in range(50):
        for (wanted,) in dgt.even_steps(loader, node):
            optimizer.zero_grad()
            fabric.backward((model(torch.ones_like(wanted)) - wanted).square().mean() / 2)
            optimizer.step()

    fabric.save("fabric.ckpt", {"model": model, "optimizer": optimizer})  # the average, by rank 0; all ranks call it
    print(f"node {node.rank}: {model.weight.item():.4f}")
