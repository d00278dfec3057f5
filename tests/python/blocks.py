# SPDX-License-Identifier: Apache-2.0
"""Small models with the MLPs of Gemma, Gemma 2 and Llama, and how they are trained on a task that takes 200 steps."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn


class Mlp(nn.Module):
    """As transformers' GemmaMLP, Gemma2MLP and LlamaMLP are."""

    def __init__(self, width, hidden, act_fn, bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=bias)
        self.up_proj = nn.Linear(width, hidden, bias=bias)
        self.down_proj = nn.Linear(hidden, width, bias=bias)
        self.act_fn = act_fn

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class GeluTanh(nn.Module):
    """As transformers' GELUTanh: a module without a name that says so to PyTorch."""

    def forward(self, z):
        return F.gelu(z, approximate="tanh")


class PartialGeluTanh(nn.Module):
    """As its later ones: a partial, and a method that it could hold in its place."""

    def __init__(self):
        super().__init__()
        self.act = functools.partial(F.gelu, approximate="tanh")

    def by_parts(self, z):
        return z * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

    def forward(self, z):
        return self.act(z)


class RmsNorm(nn.Module):
    """plus_one: Gemma's, whose weight is added to 1."""

    def __init__(self, width, plus_one):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width) if plus_one else torch.ones(width))
        self.plus_one = plus_one

    def forward(self, x):
        wide = x.float()
        normal = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        return normal * (1 + self.weight if self.plus_one else self.weight)


class Block(nn.Module):
    """Causal attention and an MLP, each after a norm and beside a residual; Gemma 2 also norms what the MLP gives."""

    def __init__(self, width, hidden, heads, act_fn, plus_one, norm_after):
        super().__init__()
        self.heads = heads
        self.input_layernorm = RmsNorm(width, plus_one)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.post_attention_layernorm = RmsNorm(width, plus_one)
        self.mlp = Mlp(width, hidden, act_fn)
        self.post_feedforward_layernorm = RmsNorm(width, plus_one) if norm_after else nn.Identity()

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        past = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~past, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.input_layernorm(x))
        return x + self.post_feedforward_layernorm(self.mlp(self.post_attention_layernorm(x)))


class Model(nn.Module):
    def __init__(self, layout, width=64, hidden=192, vocabulary=64, layers=1, heads=4):
        super().__init__()
        gemma = layout.startswith("gemma")
        self.embed = nn.Embedding(vocabulary, width)
        self.scale = math.sqrt(width) if gemma else 1.0
        self.layers = nn.ModuleList(
            Block(width, hidden, heads, GeluTanh() if gemma else nn.SiLU(), gemma, layout == "gemma2")
            for _ in range(layers))
        self.norm = RmsNorm(width, gemma)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def make(layout, device, dtype, **sizes):
    torch.manual_seed(5)
    return Model(layout, **sizes).to(device, dtype)


def train(model, device, steps=200, batch=8, length=32, vocabulary=64):
    """The loss of each step: a token follows from the two before it."""
    generator = torch.Generator().manual_seed(9)
    table = torch.randint(vocabulary, (vocabulary, 4), generator=generator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(steps):
        tokens = [torch.randint(vocabulary, (batch,), generator=generator),
                  torch.randint(vocabulary, (batch,), generator=generator)]
        for _ in range(length - 1):
            tokens.append(table[tokens[-1], tokens[-2] % 4])
        tokens = torch.stack(tokens, 1).to(device)
        logits = model(tokens[:, :-1]).float()
        loss = F.cross_entropy(logits[:, 1:].reshape(-1, vocabulary), tokens[:, 2:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]
