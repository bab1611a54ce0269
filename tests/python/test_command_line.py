from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

import lwcc
import lwcc.ops
from lwcc import pricing
from lwcc.__main__ import _parser, main
from lwcc.authoring import BuiltIn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "algorithms"


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
    assert all(f"\n  {name} " in out for name in known)
    assert max(map(len, out.splitlines())) <= 104


def test_plan_draws_rounds_and_says_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "allreduce=ring", "-p", "4"]) == 0
    out = capsys.readouterr().out
    assert "rank 1 | 1>2 +0<0 | 0>2 +3<0 | 3>2 +2<0 | 2>2 =1<0 | 1>2 =0<0 | 0>2 =3<0" in out
    assert "proved for 4 ranks: 6 rounds; the busiest rank sends 1.5 n and adds 0.75 n" in out
    assert "critical path: 6 messages, 1.5 n" in out
    assert "no algorithm needs less than 2 messages, 1.5 n sent, 0.75 n added" in out
    assert all(name in out for name in lwcc.algorithms("allreduce"))


def test_plan_draws_one_rank_with_the_lines_that_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{EXAMPLES}/ring.py:ring", "-p", "3", "--rank", "2"]) == 0
    out = capsys.readouterr().out
    assert "allreduce: rank 2 of 3, 3 chunks, 4 rounds" in out
    assert re.search(r"step 1: recv_reduce chunk 1 from rank 1 +ring\.py:\d+", out)


def test_plan_writes_a_drawing_with_an_arrow_for_each_message(tmp_path: Path) -> None:
    for name, messages in (("ring", 24), ("hierarchical", 16), ("swing", 24), ("double_binary_tree", 48)):
        file = tmp_path / f"{name}.svg"
        assert main(["plan", f"{EXAMPLES}/{name}.py:{name}", "-p", "4", "--per-node", "2", "--svg", str(file)]) == 0
        tree = ElementTree.parse(file)
        arrows = [e for e in tree.iter("{http://www.w3.org/2000/svg}line") if "marker-end" in e.attrib]
        assert len(arrows) == messages, name
        assert all(float(e.attrib["x1"]) < float(e.attrib["x2"]) for e in arrows), "an arrow goes back in time"
        width, height = (float(tree.getroot().attrib[key]) for key in ("width", "height"))
        assert all(0 <= float(e.attrib[x]) <= width for e in arrows for x in ("x1", "x2"))
        assert all(0 <= float(e.attrib[y]) <= height for e in arrows for y in ("y1", "y2"))


@pytest.mark.parametrize(
    ("words", "text"),
    [("-p 0", "from 2 to 1024"), ("-p 4 --rank 9", "ranks 0 to 3"), ("-p 4 --nodes 0,1", "names 2 nodes for 4 ranks")],
)
def test_plan_refuses_numbers_that_make_no_sense(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(["plan", "allreduce=ring", *words.split()])
    except SystemExit as leaves:
        code = int(str(leaves.code))
    assert code == 2
    assert text in capsys.readouterr().err


def test_algos_prices_for_other_ranks_and_wires(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algos", "broadcast", "-p", "5", "--model", "50,8,0"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  binomial "))
    assert "any p" in line


def test_estimates_are_those_of_the_model() -> None:
    model = (1e-6, 1e-9, 0.5e-9)
    for name, work in (("ring", (14, 1.75, 0.875)), ("recursive_doubling", (3, 3.0, 3.0))):
        plans = BuiltIn("allreduce", name).plans(8)
        expected = pricing.seconds(work, 1 << 20, model)
        assert pricing.finish(plans, 1 << 20, model) == pytest.approx(expected, rel=0.1), name
    for collective in lwcc.ops.COLLECTIVE_NAMES:
        for name in lwcc.algorithms(collective):
            for size in (2, 5, 8):
                least = pricing.seconds(pricing.bound(collective, size), 1 << 20, model)
                plans = BuiltIn(collective, name).plans(size)
                assert pricing.finish(plans, 1 << 20, model) >= 0.999 * least, (collective, name, size)


def test_check_says_what_is_wrong_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"{EXAMPLES}/ring.py:ring", "allgather=bruck", "-p", "2-5,9", "--real", "none"]) == 0
    assert capsys.readouterr().out.count("right for p = 2-5, 9 (") == 2
    file = tmp_path / "wrong.py"
    file.write_text((EXAMPLES / "circulant.py").read_text().replace("chunk=rank, count", "chunk=rank + 1, count"))
    assert main(["check", f"{file}:circulant", "--real", "none"]) == 1
    assert main(["check", f"{EXAMPLES}/ring.py:ring", "-p", "2-", "--real", "none"]) == 2


def test_verify_proves_every_algorithm(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--max-size", "5"]) == 0
    assert "REFUSED" not in capsys.readouterr().out


def test_unknown_names_are_errors_with_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "allreduce=nonsense", "-p", "4"]) == 2
    assert main(["algos", "allsum"]) == 2
    assert "known: allreduce, broadcast" in capsys.readouterr().err


def test_versions_agree() -> None:
    from lwcc import inspection

    assert inspection.version() == lwcc.__version__


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "bench",
            "interleaved rounds|COLLECTIVE what is timed: allreduce,|(default 8)|(default 16M)|before (default 8)|"
            "interleaved rounds (default 3)|(default 0.1)|(default 300)|124 an engine reached --limit",
        ),
        ("tune", "--net or --transport|(default 1K)|(default 16M)|(default 4)|(default 0.05)|(default 300)"),
        (
            "report",
            "RUN directory of lwccrun|--markdown FILE write the tables as markdown|--latex FILE write the tables as La|"
            "--svg FOLDER write every figure as an SVG|--pdf FOLDER write every figure as a PDF",
        ),
    ],
)
def test_help_says_what_a_command_does_takes_and_writes(
    command: str, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, out.splitlines())) <= 120
    assert [word for word in words.split("|") if word not in " ".join(out.split())] == []
    example = out.partition("example: ")[2].split()
    assert example[:2] == ["lwcc", command] and vars(_parser().parse_args(example[1:]))
