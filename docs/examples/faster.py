"""Half the bytes, exchanges that run during backward, and two backward passes per step."""

import torch

import dgt

with dgt.join() as node:
    network = dgt.Network(node, dgt.graphs.ring(node.size), [1.0] * node.size)

    torch.manual_seed(node.rank)
    inputs = torch.randn(256, 8, device=node.device)
    targets = inputs.sum(1, keepdim=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).to(node.device)
    optimizer = dgt.GradientTracking(
        model.parameters(), lr=0.005, network=network, wire="bfloat16", local_steps=2, bucket_mb=4, model=model
    )

    for step in range(100):
        optimizer.zero_grad()
        with optimizer.accumulate():  # every backward but a step's last
            torch.nn.functional.mse_loss(model(inputs[:128]), targets[:128]).backward()
        loss = torch.nn.functional.mse_loss(model(inputs[128:]), targets[128:])
        loss.backward()
        optimizer.step()

    optimizer.drain()  # before reading or changing parameters
    if node.is_main:
        print("loss:", round(loss.item(), 4), "sent:", network.bytes_sent, "bytes")
