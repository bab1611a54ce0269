"""Lightning over the backend lwcc: one argument of its DDP strategy.

lwccrun -np 2 examples/pytorch_lightning.py
torchrun --nproc-per-node 2 examples/pytorch_lightning.py
python examples/pytorch_lightning.py          # Lightning starts the second rank itself
"""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sum(lightning.LightningModule):
    """Learns to add eight numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=5e-2)

    def on_train_end(self) -> None:
        mine = torch.cat([p.detach().reshape(-1) for p in self.parameters()])
        everybody = self.all_gather(mine)
        assert bool((everybody == everybody[0]).all()), "the ranks' parameters differ"
        if self.global_rank == 0:
            print(f"same parameters on {len(everybody)} ranks over {dist.get_backend()}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    x = torch.randn(256, 8)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="lwcc"), max_epochs=5,
        accumulate_grad_batches=2, gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Sum(), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16))
    if trainer.is_global_zero:
        print(f"loss {float(trainer.callback_metrics['loss_epoch']):.4f}", flush=True)


if __name__ == "__main__":
    main()
