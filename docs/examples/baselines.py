"""The same loop by all three algorithms, on a graph of one's own."""

import networkx
import torch

import dgt

with dgt.join() as node:
    graph = networkx.cycle_graph(node.size)  # any connected undirected graph on the nodes 0..n-1
    for algorithm in (dgt.GradientTracking, dgt.DSGD, dgt.AllReduce):
        network = dgt.Network(node, graph, [1.0 + i for i in range(node.size)], strategy="II")
        torch.manual_seed(node.rank)
        inputs = torch.randn(256, 8, device=node.device)
        targets = inputs.sum(1, keepdim=True) + node.rank
        model = torch.nn.Linear(8, 1).to(node.device)
        optimizer = algorithm(model.parameters(), lr=0.05, network=network)
        for step in range(200):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
        biases = node.all_gather(model.bias.detach().cpu()).flatten()
        if node.is_main:
            print(f"{algorithm.__name__:16} every node's bias:", [round(bias, 3) for bias in biases.tolist()])
