"""Training frameworks over the backend lwcc. They are no part of the default setup: pip install '.[frameworks]'."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow
SAME = "same parameters on 2 ranks over lwcc"
TRAINER = """
import torch, torch.distributed as dist
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 130
    def __getitem__(self, index):
        words = torch.randint(0, 100, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": int(words[0] > 50)}

dist.init_process_group("lwcc")
torch.manual_seed(0)
model = BertForSequenceClassification(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2,
    num_attention_heads=2, intermediate_size=64, max_position_embeddings=32))
arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=2, use_cpu=True, report_to=[],
    gradient_accumulation_steps=2, eval_strategy="epoch", save_steps=10, disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=Words(), eval_dataset=Words())
trainer.train()
total = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
everybody = [torch.empty_like(total) for _ in range(2)]
dist.all_gather(everybody, total)
assert torch.equal(everybody[0], everybody[1])
print("same parameters on 2 ranks over", dist.get_backend(), flush=True)
"""


@pytest.mark.parametrize("name", ["lightning", "accelerate"])
def test_an_example_trains(run_ranks: Any, root: Path, name: str) -> None:
    pytest.importorskip(name)
    done = run_ranks(2, root / "examples" / f"pytorch_{name}.py", timeout=120)
    assert SAME in done.out, done.tail()


def test_lightning_starts_its_ranks(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    command = [sys.executable, str(root / "examples" / "pytorch_lightning.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and SAME in done.stdout, done.stdout + done.stderr


def test_the_trainer_of_transformers(run_ranks: Any) -> None:
    pytest.importorskip("transformers")
    done = run_ranks(2, TRAINER, prelude=False, timeout=180)
    assert done.out.count(SAME) == 2, done.tail()
