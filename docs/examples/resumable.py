"""Stop it with Ctrl-C and start it again: it goes on where it was, bit by bit."""

import sys

import torch

import dgt

steps = int(sys.argv[1])

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0 + i for i in range(node.size)])

    torch.manual_seed(node.rank)
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True)
    model = torch.nn.Linear(8, 1).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.02, network=network)

    node.stop_on_signals()  # SIGTERM, SIGUSR1 or Ctrl-C on any rank: all stop at the same step
    checkpoints = dgt.Checkpoints("checkpoints", network, every=1000, model=model, optimizer=optimizer)
    begin = done = checkpoints.resume()
    for step in range(begin, steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        done = step + 1
        if checkpoints.step(done):  # True: saved, because somebody asked to stop
            break
    if node.is_main:
        print(f"steps {begin} to {done}")
