"""Ten of chaos.py's kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_ten_kills_leave_no_hang_no_wrong_sum_and_nothing_behind() -> None:
    command = [sys.executable, str(Path(__file__).with_name("chaos.py")), "--kills", "10", "--seed", "20240501"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 kills at np=4, 0 bad" in done.stdout
