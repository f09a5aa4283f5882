"""The same model, data, steps and optimizer by torch's DistributedDataParallel and by dgt.

    dgt run -n 4 against_ddp.py gpt2 ddp              # or ring, or exponential; AdamW, validation loss
    dgt run -n 4 against_ddp.py resnet ring           # CIFAR-10, SGD with momentum, accuracy
    dgt run -n 4 against_ddp.py gpt2 ring 900 0.002   # steps and lr of your own

What comes out is one model: DDP's, or the network's average. Every rank draws its batches from its own quarter.
"""

import sys
from importlib import resources

import torch

import dgt

task, way = sys.argv[1:3]
usual = {"gpt2": (900, 0.002), "resnet": (300, 0.1)}[task]
steps, lr = (int(sys.argv[3]), float(sys.argv[4])) if len(sys.argv) > 3 else usual


def text(node: dgt.Node):
    """A small GPT-2 over the characters of a text; loss on its last tenth."""
    from transformers import GPT2Config, GPT2LMHeadModel

    letters = resources.files("dgt.data").joinpath("constitution.txt").read_text()
    symbols = sorted(set(letters))
    codes = torch.tensor([symbols.index(letter) for letter in letters])
    train, test = codes.tensor_split([len(codes) * 9 // 10])
    mine = train.tensor_split(node.size)[node.rank]
    sizes = {"n_positions": 64, "n_embd": 96, "n_layer": 3, "n_head": 4}
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(symbols), loss_type="ForCausalLM", **sizes, **none))
    draw = torch.Generator().manual_seed(node.rank)

    def loss(wrapped):
        starts = torch.randint(len(mine) - 64, (16,), generator=draw)
        batch = torch.stack([mine[start : start + 64] for start in starts])
        return wrapped(input_ids=batch, labels=batch).loss

    def score():
        batch = test[: len(test) // 64 * 64].view(-1, 64)
        return model(input_ids=batch, labels=batch).loss.item()

    return model, loss, score, None, {"base": torch.optim.AdamW, "base_options": {"weight_decay": 0.01}}


def images(node: dgt.Node):
    """ResNet-20 on CIFAR-10, flipped at random; accuracy on 2,000 test images, statistics measured anew."""
    from dgt.models import resnet20

    train, test = dgt.cifar10(), dgt.cifar10(train=False)
    pick = torch.Generator().manual_seed(0)
    order = torch.randperm(len(train), generator=pick).tensor_split(node.size)[node.rank]
    model, draw = resnet20(), torch.Generator().manual_seed(node.rank)

    def drawn():
        chosen = order[torch.randint(len(order), (32,), generator=draw)].tolist()
        x, y = zip(*(train[each] for each in chosen), strict=True)
        return torch.stack(x), torch.tensor(y)

    def loss(wrapped):
        x, y = drawn()
        flip = torch.rand(len(x), generator=draw) < 0.5
        return torch.nn.functional.cross_entropy(wrapped(torch.where(flip[:, None, None, None], x.flip(3), x)), y)

    def score():
        x, y = zip(*(test[each] for each in range(2000)), strict=True)
        return (model(torch.stack(x)).argmax(1) == torch.tensor(y)).float().mean().item()

    def recalibrate():
        torch.optim.swa_utils.update_bn((drawn()[0] for _ in range(30)), model)

    return model, loss, score, recalibrate, {"momentum": 0.9, "nesterov": True}


with dgt.join() as node:
    torch.manual_seed(0)
    model, loss, score, recalibrate, options = {"gpt2": text, "resnet": images}[task](node)
    graph = getattr(dgt.graphs, "ring" if way == "ddp" else way)(node.size)
    network = dgt.Network(node, graph, [1.0] * node.size)
    wrapped = model
    if way == "ddp":
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        if "base" in options:
            optimizer = options["base"](model.parameters(), lr=lr, **options["base_options"])
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, **options)
    else:
        optimizer = dgt.GradientTracking(model.parameters(), lr=lr, network=network, **options)
    warmup = steps // 10
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup)
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warmup)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], milestones=[warmup])
    for _ in range(steps):
        optimizer.zero_grad()
        loss(wrapped).backward()
        optimizer.step()
        scheduler.step()

    with network.average(model, recalibrate), torch.no_grad():  # of equal models: that model
        model.eval()
        found = score()
    if node.is_main:
        print(f"{task} {way} steps={steps} lr={lr:g}: {found:.4f}")
