"""Nodes of two ranks: each node has data and a weight of its own, and its ranks divide the work."""

import networkx
import torch

import dgt

with dgt.join(ranks_per_node=2) as node:  # ranks 0 and 1 are node 0, ranks 2 and 3 node 1
    network = dgt.Network(node, networkx.path_graph(node.size), [1.0, 3.0])
    torch.manual_seed(node.world.rank)  # every rank has a part of its node's data
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True) + node.rank
    model = torch.nn.Linear(8, 1).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.05, network=network)
    for step in range(300):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()  # of this rank's part
        optimizer.clip_grad_norm_(10.0)  # of the node's gradient, the mean of its ranks'
        optimizer.step()
    biases = node.all_gather(model.bias.detach().cpu()).flatten()  # a value per node
    if node.is_main:
        print("every node's bias:", [round(bias, 2) for bias in biases.tolist()])
