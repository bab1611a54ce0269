"""benchmarks/compare.py: cell by cell, and whether two evaluations agree."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def compare() -> Any:
    spec = importlib.util.spec_from_file_location("compare", ROOT / "benchmarks" / "compare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, times: dict[str, list[float]]) -> Path:
    path.mkdir()
    rows = [{"size": 1024, "name": name, "rounds": rounds} for name, rounds in times.items()]
    record = {"kind": "bench", "collective": "allreduce", "np": 2, "net": "", "rows": rows, "machine": "m",
              "lwcc_version": "0"}  # fmt: skip
    (path / "allreduce-2.json").write_text(json.dumps(record))
    (path / "other.json").write_text("[]")
    runs = [{"variant": n, "samples_per_s": 1 / t} for n in times for t in times[n]]
    training = {"kind": "baseline", "command": ["/x/train.py", "--steps", "9"], "np": 2, "net": "", "machine": "m",
                "lwcc_version": "0", "settings": dict.fromkeys(times, ""), "runs": runs}  # fmt: skip
    (path / "train").mkdir()
    (path / "train" / "run.json").write_text(json.dumps(training))
    return path


def test_what_became_of_each_cell(compare: Any, tmp_path: Path, capsys: Any) -> None:
    old = write(tmp_path / "old", {"lwcc": [1.0, 1.0, 1.1], "mpi": [3.0, 3.0, 3.1]})
    new = write(tmp_path / "new", {"lwcc": [2.0, 2.0, 2.1], "mpi": [3.0, 3.0, 3.1]})
    assert compare.main([str(old), str(new)]) == 1
    assert "0 better, 0 noise, 2 worse" in capsys.readouterr().out
    assert compare.main([str(new), str(old)]) == 0
    assert compare.main(["--record", str(tmp_path / "old.csv"), str(old)]) == 0
    assert compare.main([str(tmp_path / "old.csv"), str(old)]) == 0
    assert "0 better, 2 noise, 0 worse" in capsys.readouterr().out


def test_two_evaluations_agree_unless_they_contradict(compare: Any, tmp_path: Path, capsys: Any) -> None:
    first = write(tmp_path / "a", {"lwcc": [1.0, 1.0, 1.1], "mpi": [3.0, 3.0, 3.1], "gloo": [1.0, 1.0, 1.2]})
    second = write(tmp_path / "b", {"lwcc": [1.0, 1.0, 1.1], "mpi": [2.0, 2.0, 2.1], "gloo": [9.0, 9.0, 9.2]})
    third = write(tmp_path / "c", {"lwcc": [5.0, 5.0, 5.1], "mpi": [2.0, 2.0, 2.1], "gloo": [9.0, 9.0, 9.2]})
    assert compare.main(["--agree", str(first), str(second)]) == 0
    assert compare.main(["--agree", str(first), str(third)]) == 1
    said = capsys.readouterr().out
    assert "contradicted: allreduce 2 1024 mpi" in said and "contradicted: training train.py --steps 9 2 mpi" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such file"),
        ("[]", "no figures of lwcc bench"),
        ('{"kind": "bench", "np"', "x.json: no JSON, or not all of it"),
        ('{"kind": "bench", "np": 2}', "x.json: not what was expected in such a file: KeyError: 'net'"),
    ],
)
def test_nothing_to_compare_is_an_error(compare: Any, tmp_path: Path, capsys: Any, text: Any, said: str) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text)
    for arguments in ([str(file), str(file)], ["--record", str(tmp_path / "x.csv"), str(file)]):
        with pytest.raises(SystemExit) as stopped:
            compare.main(arguments)
        assert stopped.value.code == 2 and said in capsys.readouterr().err
    assert not (tmp_path / "x.csv").exists()


def test_a_cell_measured_twice_is_an_error(compare: Any, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {"lwcc": [1.0, 1.0, 1.1]})
    (folder / "again.json").write_text((folder / "allreduce-2.json").read_text())
    with pytest.raises(ValueError, match="measured the same"):
        compare.read(folder)
