"""Data larger than memory: a file per node that workers read as they need it, and weights by its size."""

import numpy as np
import torch

import dgt


class Stored(torch.utils.data.Dataset):
    """Rows of a file, mapped where they are read: in the workers."""

    def __init__(self, path: str, columns: int) -> None:
        self.rows = np.memmap(path, np.float32, "r").reshape(-1, columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.tensor(self.rows[index])
        return row[:-1], row[-1:]


with dgt.join() as node:
    path = f"rows_{node.rank}.bin"  # this node's own, here of 200, 400, 600, ... rows
    inputs = np.random.default_rng(node.rank).standard_normal((200 * (1 + node.rank), 8), np.float32)
    np.hstack([inputs, inputs.sum(1, keepdims=True)]).tofile(path)

    mine = Stored(path, 9)
    network = dgt.Network(node, dgt.graphs.ring(node.size), dgt.data_size_weights(mine, node))
    loader = torch.utils.data.DataLoader(mine, batch_size=20, shuffle=True, num_workers=2, persistent_workers=True)

    model = torch.nn.Linear(8, 1).to(node.device)
    optimizer = dgt.GradientTracking(model.parameters(), lr=0.05, network=network)
    for epoch in range(3):
        for x, y in dgt.even_steps(loader, node):  # nodes with fewer rows start over
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x.to(node.device)), y.to(node.device))
            loss.backward()
            optimizer.step()

    if node.is_main:
        print(f"steps {optimizer.iteration}, share of node 0 in the average {network.average_weight:.2f}")
