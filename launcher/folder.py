"""Folders for temporary files that know whose they are, so that what a killed launcher left is found and removed."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import tempfile

_STEM = "lwcc-run-"  # then the launcher's pid


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a folder of this process; first remove those of launchers that were killed."""
    for path in glob.glob(os.path.join(tempfile.gettempdir(), _STEM + "*-*")):
        owner = os.path.basename(path)[len(_STEM) :].partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another launcher may be at it too
            if owner.isdigit() and not os.path.exists(f"/proc/{owner}") and os.stat(path).st_uid == os.geteuid():
                shutil.rmtree(path, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"{_STEM}{os.getpid()}-")
