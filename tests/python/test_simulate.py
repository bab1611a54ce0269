"""`lwcc simulate`: closed forms, what ranks share, many ranks, user algorithms, and what bad input says."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lwcc
from lwcc import calibration, fabric, moving, simulating, symmetry
from lwcc.authoring import find
from lwcc.fabric import Costs, Network

ALPHA, BETA, GAMMA = 10e-6, 1e-9, 0.1e-9
WIRE = Costs.of_wire(ALPHA, BETA, GAMMA)
MINE = """
import lwcc

@lwcc.algorithm("allreduce")
def swap(plan, rank, size):
    plan.require(size == 2, "two ranks")
    plan.send(1 - rank, 0, 2)
    plan.recv_reduce(1 - rank, 0, 2)

@lwcc.algorithm("allreduce", chunks=1)
def uneven(plan, rank, size):
    for k in plan.rounds(size):
        if rank == k and rank + 1 < size:
            plan.send(rank + 1)
        if rank == k + 1:
            plan.recv_reduce(rank - 1)
"""


def seconds(name: str, ranks: int, nbytes: int, costs: Costs = WIRE, network: Network | None = None) -> float:
    return simulating.run(find(name, "allreduce"), nbytes, network or Network(ranks, ranks), costs).seconds


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_the_ring_takes_what_its_formula_says(ranks: int) -> None:
    block = 4096 * 16
    each = ALPHA + block * BETA
    assert seconds("ring", ranks, ranks * block) == pytest.approx(2 * (ranks - 1) * each + (ranks - 1) * block * GAMMA)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_recursive_doubling_and_circulant_take_what_their_formulas_say(ranks: int) -> None:
    n, deep, share = 1 << 17, math.log2(ranks), (ranks - 1) / ranks
    assert seconds("recursive_doubling", ranks, n) == pytest.approx(deep * (ALPHA + n * BETA + n * GAMMA))
    want = 2 * deep * ALPHA + 2 * share * n * BETA + share * n * GAMMA
    assert seconds("halving_doubling", ranks, n) == pytest.approx(want)
    # where a range runs over the end there are two messages, which others may pass
    assert seconds("circulant", ranks, n) == pytest.approx(want, rel=1e-6 if ranks <= 8 else 0.03)


def test_a_message_beyond_the_first_takes_the_overhead() -> None:
    costs = Costs.of_wire(ALPHA, 0.0, 0.0, 2e-6)
    for ranks in (2, 3, 5, 8):  # fold: p - 1 terms, then p - 1 results
        assert seconds("fold", ranks, 64 * ranks, costs) == pytest.approx(2 * ALPHA + 2 * (ranks - 2) * 2e-6)


def test_transfer_and_reduction_overlap_by_pieces() -> None:
    n = 16 * moving.PIECE
    alone = n * BETA + n * GAMMA
    got = seconds("recursive_doubling", 2, n)
    assert n * BETA + ALPHA < got < ALPHA + alone
    assert got == pytest.approx(ALPHA + n * BETA + moving.PIECE * GAMMA)


def test_ranks_of_a_node_share_its_port() -> None:
    plans = find("recursive_doubling", "allreduce")
    alone = simulating.run(plans, 1 << 18, Network(4, 4), WIRE).seconds
    shared = simulating.run(plans, 1 << 18, Network(4, 2), WIRE).seconds  # one round within nodes, one across
    near = WIRE.near_s + 2 ** 18 * (WIRE.near_s_per_byte + GAMMA)  # fmt: skip
    assert alone == pytest.approx(2 * (ALPHA + 2 ** 18 * (BETA + GAMMA)))  # fmt: skip
    assert shared == pytest.approx(near + ALPHA + 2 ** 18 * (2 * BETA + GAMMA), rel=0.05)  # fmt: skip


def test_an_oversubscribed_uplink_is_the_limit() -> None:
    n = 1 << 18
    even = Network(8, 8, rate=1e9, leaf=4)
    narrow = Network(8, 8, rate=1e9, leaf=4, oversubscription=4.0)
    fast, slow = (seconds("recursive_doubling", 8, n, WIRE, net) for net in (even, narrow))
    each = n * 8 / 1e9 * fabric.FRAMING
    assert fast == pytest.approx(3 * (each + ALPHA + n * GAMMA), rel=0.1)
    assert slow == pytest.approx(fast + 3 * each, rel=0.1)  # only the last round crosses


def test_ranks_that_share_cores_wait_for_one() -> None:
    costs = Costs(latency_s=0.0, port_s_per_byte=0.0, send_s=10e-6, recv_s=10e-6)
    plans = find("recursive_doubling", "allreduce")
    own = simulating.run(plans, 64, Network(4, 1), costs).seconds
    two = simulating.run(plans, 64, Network(4, 1, cores=2), costs).seconds
    assert own == pytest.approx(40e-6 + 2 * costs.near_s, rel=0.2)
    assert two >= 80e-6  # 16 pieces of work of 10 us on two cores


def test_a_shaper_lets_a_burst_pass_and_then_holds_the_rate() -> None:
    rate, n = 1e8, 1 << 20
    held = seconds("ring", 2, n, WIRE, Network(2, 2, rate=rate, burst_nbytes=128 << 10))
    assert held == pytest.approx(n * fabric.FRAMING * 8 / rate, rel=0.15)


@pytest.mark.parametrize("name", ["ring", "circulant", "recursive_doubling", "halving_doubling"])
def test_ranks_that_are_alike_are_simulated_once_with_the_same_result(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks, costs = 32, Costs(latency_s=5e-6, port_s_per_byte=1e-10, send_s=1e-6, recv_s=1e-6, recv_s_per_byte=1e-10)
    whole = symmetry.cast(find(name, "allreduce"), Network(ranks, ranks))
    monkeypatch.setattr(symmetry, "SMALL", 16)
    few = symmetry.cast(find(name, "allreduce"), Network(ranks, ranks))
    assert len(whole.ranks) == ranks and len(few.ranks) < 4
    times = []
    for who in (whole, few):
        run = simulating.Simulation(costs, Network(ranks, ranks)).run([moving.Call(who, 1 << 16)])
        times.append(max(end for _, end in run[0]))
    assert times[0] == pytest.approx(times[1], rel=0.1 if name == "circulant" else 1e-6)  # it joins cut ranges


def test_ten_thousand_ranks() -> None:
    ranks, n = 10_000, 1 << 20
    ring, circulant = (lwcc.simulate(name, ranks, n, cost=WIRE) for name in ("ring", "circulant"))
    assert ring.simulated.startswith("1 of 10000 ranks") and circulant.simulated.startswith("1 of 10000 ranks")
    share = (ranks - 1) / ranks
    assert ring.seconds == pytest.approx(2 * (ranks - 1) * (ALPHA + n / ranks * BETA) + share * n * GAMMA)
    assert circulant.seconds == pytest.approx(28 * ALPHA + 2 * share * n * BETA, rel=0.15)


def test_many_ranks_that_are_not_alike_are_refused_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    monkeypatch.setattr(symmetry, "FLIGHTS_LIMIT", 1000)
    with pytest.raises(lwcc.Unsupported, match=r"2000 ranks are not alike.*at most 1000"):
        lwcc.simulate("fold", 2000, 1024, cost=WIRE)


def test_plans_and_files_of_a_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    spec = f"{file}:swap"
    got = lwcc.simulate(spec, 2, 1 << 16, cost=WIRE)
    assert got.seconds == pytest.approx(ALPHA + (1 << 16) * (BETA + GAMMA)) and got.nbytes == 1 << 16
    assert lwcc.simulate(find(spec).plans(2), 2, 1 << 16, cost=WIRE).seconds == got.seconds
    with pytest.raises(lwcc.Unsupported, match="two ranks"):
        lwcc.simulate(spec, 3, 1024)
    chain = lwcc.simulate(f"{file}:uneven", 100, 4096, cost=WIRE)  # no two ranks are alike
    assert chain.seconds == pytest.approx(99 * (ALPHA + 4096 * (BETA + GAMMA)))


def test_a_fit_finds_the_costs_that_made_the_times() -> None:
    network = Network(3, 3, host_cores=2)  # as on a small machine
    true = calibration.replace(calibration.USUAL, send_s=9e-6, switch_s=6e-6, send_s_per_byte=0.3e-9)
    seen = [
        calibration.Seen(c, a, n, simulating.run(find(a, c), n, network, true).seconds)
        for c, names, sizes in calibration.series(3, 1 << 18) for a in names[:1] for n in sizes[::2]
    ]  # fmt: skip
    found, left = calibration.fit(seen, network)
    assert left < 0.03
    cell = simulating.run(find("ring", "allreduce"), 1 << 16, network, true).seconds
    assert simulating.run(find("ring", "allreduce"), 1 << 16, network, found).seconds == pytest.approx(cell, rel=0.05)


def run(folder: Path, *words: str, code: int = 0) -> str:
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder)}
    command = [sys.executable, "-m", "lwcc", "simulate", *words]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "cost.json").write_text(json.dumps({"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "gamma_s_per_byte": 0}))
    out = run(tmp_path, "allreduce", "-np", "2", "-b", "1K", "-e", "16K", "--algorithm", "ring,mine.py:swap",
              "--net", "nodes=2,rate=1gbit,delay=50us", "--cost", "cost.json", "--json", "out.json")  # fmt: skip
    assert "2 ranks on 2 nodes, 1e+09 bit/s, delay 50 us; costs: cost.json" in out and "# best: 1.0 KiB swap" in out
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["size"] for row in rows] == [1024, 1024, 4096, 4096, 16384, 16384]
    assert all(row["t_med"] >= 60e-6 for row in rows)
    run(tmp_path, "allreduce", "-np", "4", "-b", "1M", "-e", "1M", "--algorithm", "ring", "--timeline", "t.json")
    events = json.loads((tmp_path / "t.json").read_text())
    assert {e["pid"] for e in events} == {0, 1, 2, 3}
    sends = [e for e in events if e["name"] == "send to rank 1"]
    assert len(sends) == 6 and sum(e["args"]["nbytes"] for e in sends) == 6 * (1 << 18)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-np", "1"), "-np 1: expected 2 to"),
        (("-p", "8,x"), "-np 8,x: expected 2 to"),
        (("-p", "8,16", "--timeline", "t.json"), "of one number of ranks"),
        (("--net", "loss=1%"), "the model has no losses"),
        (("--net", "rat=1gbit"), "expected nodes=N, rate=1gbit"),
        (("--net", "nodes=9"), "nodes=9: expected a whole number from 1 to 8"),
        (("--net", "oversub=2"), "needs leaf=N"),
        (("--net", "leaf=4,oversub=0.5"), "expected a number, 1 or more"),
        (("--cost", "none.json"), "cost file none.json"),
        (("--algorithm", "rign"), "known: "),
        (("--timeline", "t.json"), "--timeline is of one run"),
    ],
)
def test_bad_input_says_what_is_expected(
    words: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from lwcc import __main__

    assert __main__.main(["simulate", "allreduce", *words]) == 2
    assert text in capsys.readouterr().err


def test_several_numbers_of_ranks_and_negotiation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lwcc import __main__

    words = ["-p", "8,1000", "-b", "1K", "-e", "1K", "--algorithm", "ring", "--json", str(tmp_path / "s.json")]
    assert __main__.main(["simulate", "allreduce", *words]) == 0
    said = capsys.readouterr().out
    assert "999 messages of 25 B to its coordinator, 999 of 29 B from it: 53.9 kB" in said
    assert [one["np"] for one in json.loads((tmp_path / "s.json").read_text())] == [8, 1000]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ("{}", "it lacks 'alpha_s'"),
        ("[]", "it holds list"),
        ('{"parts": {"send_s": -1}}', "send_s is -1"),
        ("{", "cost file"),
    ],
)  # fmt: skip
def test_a_bad_cost_file_is_named(record: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "cost.json"
    file.write_text(record)
    with pytest.raises(ValueError, match=text) as caught:
        fabric.read_costs(str(file))
    assert str(file) in str(caught.value)
