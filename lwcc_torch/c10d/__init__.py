"""The backend "lwcc" of torch.distributed: `torch.distributed.init_process_group("lwcc")`.

Importing this registers it; where LWCC is installed, `import torch` does so by itself. See docs/torch-distributed.md.
"""

from __future__ import annotations

from lwcc.autoload import NAME as NAME
from lwcc.autoload import register as register

register()
