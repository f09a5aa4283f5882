import torch

import dgt

with dgt.join() as node:  # inside torchrun or srun; gloo or nccl
    weights = [1.0 + i for i in range(node.size)]  # how much each node counts
    network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")

    torch.manual_seed(node.rank)  # this node's own data
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True) + 0.1 * node.rank

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)

    for step in range(300):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()

    losses = node.all_gather(loss.detach().cpu())  # [nodes]
    if node.is_main:
        print("loss of every node:", [round(value, 4) for value in losses.tolist()])
