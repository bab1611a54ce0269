from __future__ import annotations

import pytest

import lwcc
from lwcc.__main__ import main


def test_info_prints_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"lwcc      {lwcc.__version__}" in out
    assert "allreduce" in out


def test_algos_lists_what_the_library_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", "allreduce"]) == 0
    out = capsys.readouterr().out
    known = lwcc.algorithms("allreduce")
    assert "ring" in known
    assert all(name in out for name in known)


def test_plan_draws_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "allreduce", "ring", "0", "4"]) == 0
    assert capsys.readouterr().out == lwcc.plan_text("allreduce", "ring", 0, 4)


def test_verify_proves_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--max-size", "5"]) == 0
    assert "REFUSED" not in capsys.readouterr().out


def test_unknown_names_are_errors_with_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "allreduce", "nonsense", "0", "4"]) == 2
    assert main(["algos", "allsum"]) == 2
    assert "known: allreduce, broadcast" in capsys.readouterr().err


def test_versions_agree() -> None:
    from lwcc import inspection

    assert inspection.version() == lwcc.__version__
