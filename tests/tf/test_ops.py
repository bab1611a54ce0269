"""lwcc_tf by real ranks; the cases are in cases_*.py."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("tensorflow") is None:  # not imported: that takes seconds
    pytest.skip("TensorFlow is not installed", allow_module_level=True)
HERE = Path(__file__).parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def run_cases(run_ranks: Any, n: int, script: str, *files: str) -> None:
    done = run_ranks(n, HERE / script, timeout=400, env=QUIET)
    held = re.findall(r"held: (case_\w+)", done.out)
    expected = [case for file in files for case in re.findall(r"^def (case_\w+)", (HERE / file).read_text(), re.M)]
    assert held == expected, done.tail()


def test_ops_graphs_and_keras_on_two_ranks(run_ranks: Any) -> None:
    files = ("cases_ops.py", "cases_names.py", "cases_graphs.py", "cases_keras.py", "cases_horovod.py")
    run_cases(run_ranks, 2, "cases_all.py", *files)


def test_ops_and_names_on_three_ranks(run_ranks: Any) -> None:
    run_cases(run_ranks, 3, "cases_plain.py", "cases_ops.py", "cases_names.py")


def test_kernels_that_hold_a_thread_are_right_too(run_ranks: Any) -> None:
    source = f"""
    import sys
    sys.path.insert(0, {str(HERE)!r})
    import cases_graphs, cases_ops
    from casebook import run
    from lwcc_tf import library
    names = ("case_gathering_ranks_may_bring_different_rows", "case_branches_and_loops_may_communicate",
             "case_equal_calls_are_not_merged_and_constants_not_folded")
    run({{name: getattr(cases_graphs, name, None) or getattr(cases_ops, name) for name in names}})
    assert not library.asynchronous()
    """
    done = run_ranks(2, source, prelude=False, env={**QUIET, "LWCC_TF_BLOCKING": "1"}, timeout=200)
    assert done.out.count("held: case_") == 3, done.tail()
