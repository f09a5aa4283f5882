"""A small decoder-only transformer over characters."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); each position sees those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.query_key_value(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class CharTransformer(nn.Module):
    """characters [batch, length] -> scores of the next character at every position [batch, length, symbols]."""

    def __init__(self, symbols: int, context: int, layers: int, heads: int, width: int) -> None:
        super().__init__()
        self.symbol = nn.Embedding(symbols, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.symbol.weight  # tied, as usual for language models
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.symbol(characters) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))
