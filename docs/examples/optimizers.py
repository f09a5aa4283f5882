"""Momentum and AdamW on weighted nodes: dgt run -n 4 optimizers.py"""

import torch

import dgt

CHOICES = {
    "plain": {"lr": 0.05},
    "Nesterov momentum": {"lr": 0.005, "momentum": 0.9, "nesterov": True},
    "AdamW": {"lr": 0.05, "base": torch.optim.AdamW, "base_options": {"betas": (0.9, 0.99), "weight_decay": 0.0}},
}
STEPS = 400

with dgt.join() as node:
    wanted = 2.0 * node.rank  # what this node's data asks for
    weights = [1.0 + i for i in range(node.size)]
    right = sum(weight * 2.0 * i for i, weight in enumerate(weights)) / sum(weights)
    for name, options in CHOICES.items():
        network = dgt.Network(node, dgt.graphs.ring(node.size), weights, strategy="II")
        theta = torch.nn.Parameter(torch.zeros(3, device=node.device))
        optimizer = dgt.GradientTracking([theta], network=network, **options)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (theta - wanted).square().sum().backward()
            optimizer.step()
            scheduler.step()
        if node.is_main:
            print(f"{name}: {theta[0].item():.3f}, the weighted optimum is {right:.3f}", flush=True)
