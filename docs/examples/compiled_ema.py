"""torch.compile, and an average over time of a node's model, of which the network average is evaluated."""

import torch

import dgt

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0 + i for i in range(node.size)])
    torch.manual_seed(node.rank)
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True)

    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(node.device)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    smoothed = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)
    compiled = torch.compile(model)  # the same parameters

    for step in range(200):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(compiled(inputs), targets).backward()
        optimizer.step()
        smoothed.update_parameters(model)

    with network.average(smoothed), torch.no_grad():
        loss = torch.nn.functional.mse_loss(smoothed(inputs), targets).item()
    network.save_average("smoothed.pt", smoothed.module)
    if node.is_main:
        print("loss of the smoothed average:", round(loss, 4))
