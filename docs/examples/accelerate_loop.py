"""Accelerate: nodes that want 0, 1 and 2, with weights 1, 1 and 10, agree on 1.75."""

import torch

import dgt
from dgt.integrations.accelerate import NodeAccelerator

accelerator = NodeAccelerator(cpu=True)  # connects the ranks; dgt uses its process group
with dgt.join(device="cpu") as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1, 1, 10])
    mine = torch.utils.data.TensorDataset(torch.full((8, 1), float(node.rank)))  # this node's own data

    model = torch.nn.Linear(1, 1, bias=False).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.2, network=network)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    loader = torch.utils.data.DataLoader(mine, batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    for epoch in range(50):
        for (wanted,) in dgt.even_steps(loader, node):
            optimizer.zero_grad()
            accelerator.backward((model(torch.ones_like(wanted)) - wanted).square().mean() / 2)
            optimizer.step()
            scheduler.step()

    network.save_average("accelerate.pt", model)  # an ordinary state_dict, by rank 0; all ranks call it
    print(f"node {node.rank}: {model.weight.item():.4f}")
accelerator.end_training()
