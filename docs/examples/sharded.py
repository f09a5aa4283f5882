"""A data set that all nodes have, a part for each, and a loader that resumes in the middle of an epoch."""

import sys

import torch

import dgt

steps = int(sys.argv[1])

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0 + i for i in range(node.size)])

    draw = torch.Generator().manual_seed(0)  # in place of dgt.cifar10(): any data set with targets
    inputs = torch.randn(1000, 8, generator=draw)
    targets = (inputs[:, 0] > 0).long() + 2 * (inputs[:, 1] > 0).long()
    everything = torch.utils.data.TensorDataset(inputs, targets)

    mine = dgt.shard(everything, network, "dirichlet", beta=0.5)  # as large as the node's weight, few labels
    loader = dgt.ResumableLoader(mine, node, batch_size=16)  # epochs of the same length on all nodes

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.1, network=network)

    checkpoints = dgt.Checkpoints("shards", network, every=500, model=model, optimizer=optimizer, loader=loader)
    begin = step = checkpoints.resume()
    while step < steps:
        for x, y in loader:  # the rest of the epoch
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x.to(node.device)), y.to(node.device)).backward()
            optimizer.step()
            step += 1
            checkpoints.step(step)
            if step == steps:
                break

    sizes = node.all_gather(len(mine)).tolist()
    if node.is_main:
        print(f"steps {begin} to {step}, samples {sizes}, epoch {loader.epoch}")
