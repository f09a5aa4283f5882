"""Nodes with more and less data: each counts as much as it has, and all make the same number of steps."""

import torch

import dgt

with dgt.join() as node:
    torch.manual_seed(node.rank)
    inputs = torch.randn(64 * (1 + node.rank), 8)  # rank 3 has four times as much as rank 0
    targets = inputs.sum(1, keepdim=True)
    mine = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(mine, batch_size=32, shuffle=True)

    weights = node.all_gather(len(mine)).tolist()  # a node counts in proportion to its data
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)

    for epoch in range(30):
        for x, y in dgt.even_steps(loader, node):  # as many as the longest loader has: shorter ones start over
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x.to(node.device)), y.to(node.device)).backward()
            optimizer.step()

    def evaluate(model: torch.nn.Module) -> float:
        x = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0)).to(node.device)
        return torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item()

    with network.average(model):  # the strategy's network average, on every node; restored afterwards
        loss = evaluate(model)
    network.save_average("average.pt", model)  # an ordinary state_dict, written by rank 0

    if node.is_main:
        print("loss of the average model:", round(loss, 4))
