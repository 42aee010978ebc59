"""Compile a small model with TorchInductor on the CPU, forward and backward, and print what its caches did."""

from __future__ import annotations

import json

import torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)))
loss = model(torch.randn(8, 32)).square().sum()
loss.backward()
names = ("fxgraph_cache_hit", "fxgraph_cache_miss")
told = {name: counters["inductor"][name] for name in names}
told |= {name: counters["aot_autograd"][name] for name in ("autograd_cache_hit", "autograd_cache_miss")}
print(json.dumps({**told, "loss": float(loss)}))  # noqa: T201 - the answer
