"""All cases in one job: starting TensorFlow takes longer than they do."""

from __future__ import annotations

import cases_graphs
import cases_horovod
import cases_keras
import cases_names
import cases_ops
from casebook import run

if __name__ == "__main__":
    run({**vars(cases_ops), **vars(cases_names), **vars(cases_graphs), **vars(cases_keras), **vars(cases_horovod)})
