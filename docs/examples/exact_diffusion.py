"""Exact diffusion beside gradient tracking: the same optimum, half the bytes. dgt run -n 4 exact_diffusion.py"""

import torch

import dgt

WAYS = {
    "gradient tracking": (dgt.GradientTracking, {}),
    "exact diffusion": (dgt.ExactDiffusion, {}),
    "its EXTRA form": (dgt.ExactDiffusion, {"form": "extra"}),
}


with dgt.join() as node:
    for name, (algorithm, options) in WAYS.items():
        network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0 + i for i in range(node.size)], laziness=0.35)
        theta = torch.nn.Parameter(torch.zeros(1000, device=node.device))  # the optimum is the weighted mean of targets
        optimizer = algorithm([theta], lr=0.1, network=network, **options)
        for _ in range(300):
            theta.grad = theta.detach() - node.rank
            optimizer.step()
        megabytes = node.all_reduce(torch.tensor(float(network.bytes_sent))).item() / 1e6
        if node.is_main:
            print(f"{name}: {theta.mean().item():.4f} with {megabytes:.1f} MB")
