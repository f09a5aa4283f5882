import torch

inputs = torch.randn(256, 8)
targets = inputs.sum(1, keepdim=True)

model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

for step in range(300):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()

print("loss:", round(loss.item(), 4))
