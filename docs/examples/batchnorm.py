"""BatchNorm keeps statistics of a node's own data: mix them with the neighbours', or measure them anew."""

import torch

import dgt

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)

    torch.manual_seed(node.rank)
    inputs = node.rank + torch.randn(256, 8, device=node.device)  # every node's data lie elsewhere
    targets = inputs.sum(1, keepdim=True)
    layers = [torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 1)]
    model = torch.nn.Sequential(*layers).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)
    buffers = dgt.MixedBuffers(model, network)

    for step in range(100):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        buffers.mix()  # b_i = W_ii b_i + sum_j W_ij b_j

    def recalibrate() -> None:
        torch.optim.swa_utils.update_bn(inputs.split(64), model)

    with network.average(model, recalibrate):  # measured anew for the average model, on all nodes' data together
        means = model[1].running_mean.clone().cpu()
    same = node.all_gather(means)
    if node.is_main:
        print("the same statistics everywhere:", bool((same == same[0]).all()))
