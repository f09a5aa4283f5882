"""torchdata's loader, which has a state of its own: `pip install torchdata`."""

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import dgt

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)
    mine = torch.utils.data.TensorDataset(torch.arange(64.0).view(64, 1) + 100 * node.rank)
    loader = StatefulDataLoader(mine, batch_size=4, shuffle=True, num_workers=1)

    model = torch.nn.Linear(1, 1).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=1e-6, network=network)
    checkpoints = dgt.Checkpoints("stateful", network, every=5, model=model, optimizer=optimizer, loader=loader)
    begin = checkpoints.resume()
    for step, (x,) in enumerate(loader, begin + 1):
        optimizer.zero_grad()
        model(x.to(node.device)).mean().backward()
        optimizer.step()
        checkpoints.step(step)

    if node.is_main:
        print(f"steps {begin} to {step}")
