"""Hugging Face Accelerate over the backend lwcc: the process group is made first, and Accelerate takes it as it is.

lwccrun -np 2 examples/pytorch_accelerate.py
torchrun --nproc-per-node 2 examples/pytorch_accelerate.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ROWS = 5, 260


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("lwcc")  # Accelerate itself would only make one of gloo or MPI
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(1)
    x = torch.randn(ROWS, 8)
    data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for epoch in range(EPOCHS):
        for inputs, targets in data:
            with accelerator.accumulate(model):
                loss = (model(inputs) - targets).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean")
        if accelerator.is_main_process:
            print(f"epoch {epoch + 1}: loss {mean.item():.4f}", flush=True)
    total = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    everybody = accelerator.gather(total.unsqueeze(0))
    assert bool((everybody == everybody[0]).all()), "the ranks' parameters differ"
    if accelerator.is_main_process:
        print(f"same parameters on {len(everybody)} ranks over {dist.get_backend()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
