"""The cases that need no Keras, in one job."""

from __future__ import annotations

import cases_names
import cases_ops
from casebook import run

if __name__ == "__main__":
    run({**vars(cases_ops), **vars(cases_names)})
