"""Nodes of two ranks, whose model FSDP2 divides among them: dgt exchanges the shards."""

import networkx
import torch
from torch.distributed.fsdp import fully_shard

import dgt

with dgt.join(ranks_per_node=2) as node:
    network = dgt.Network(node, networkx.path_graph(node.size), [1.0, 3.0])
    torch.manual_seed(node.world.rank)
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True) + node.rank
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)).to(node.device)
    fully_shard(model, mesh=node.local.mesh())
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)
    for step in range(400):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        offset = node.world.all_gather(model(torch.zeros(1, 8, device=node.device)).cpu()).flatten()
    if node.is_main:
        print("every rank's answer to 0:", [round(each, 1) for each in offset.tolist()])
