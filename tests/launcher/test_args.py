"""The command line: what it becomes, and what is refused in which words."""

import os
import socket
from pathlib import Path

import pytest

from lwcc.launcher.args import LaunchSpec, build_parser, parse
from lwcc.launcher.env import Meeting, Seat, rank_environment, seats, without_secret
from lwcc.launcher.flags import MAPPED, REFUSED
from lwcc.launcher.hosts import Host

MEETING = Meeting("127.0.0.1:9", "ab" * 32, "127.0.0.1", 7, "job")


def _seat(rank: int, size: int) -> Seat:
    return seats((Host("me", size),), size)[rank]


def _refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parse(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_the_plain_command_is_taken_whole() -> None:
    spec = parse(["-np", "4", "train.py", "--epochs", "3", "-np", "9"])
    assert (spec.np, spec.command, spec.module) == (4, ("train.py", "--epochs", "3", "-np", "9"), False)
    assert parse(["--num-proc", "2", "--", "ls", "-l"]).command == ("ls", "-l")


def test_a_module_takes_the_rest_of_the_line() -> None:
    spec = parse(["-np", "2", "-m", "pkg.mod", "--timeout", "x"])
    assert (spec.module, spec.command, spec.timeout) == (True, ("pkg.mod", "--timeout", "x"), None)


@pytest.mark.parametrize(
    ("flags", "variable", "value"),
    [
        ("--fusion-threshold-mb 64", "LWCC_FUSION_THRESHOLD", "67108864"),
        ("--fusion-threshold-mb 0.5", "LWCC_FUSION_THRESHOLD", "524288"),
        ("--cache-capacity 32", "LWCC_CACHE_CAPACITY", "32"),
        ("--log-level DEBUG", "LWCC_LOG_LEVEL", "debug"),
        ("--stall-check-warning-time-seconds 2.5", "LWCC_STALL_WARN", "2.5"),
        ("--stall-check-shutdown-time-seconds 60", "LWCC_STALL_ABORT", "60"),
        ("--no-stall-check", "LWCC_STALL_ABORT", "0"),
        ("--network-interface lo", "LWCC_IFACE", "lo"),
        ("--network-interfaces lo", "LWCC_IFACE", "lo"),
        ("--algorithm allreduce=ring", "LWCC_ALGORITHM", "allreduce=ring"),
        ("--timeline-filename /t.json", "LWCC_TIMELINE", "/t.json"),
        ("--start-timeout 30", "LWCC_START_TIMEOUT", "30"),
        ("-x A=b=c", "A", "b=c"),
    ],
)
def test_a_flag_becomes_a_variable_of_every_rank(flags: str, variable: str, value: str) -> None:
    spec = parse(["-np", "2", *flags.split(), "train.py"])
    assert spec.extra_env[variable] == value
    assert rank_environment({variable: "old"}, spec.extra_env, _seat(1, 2), MEETING)[variable] == value
    assert spec.command == ("train.py",)


@pytest.mark.parametrize("name", [name for row in REFUSED for name in row.names])
def test_a_flag_without_meaning_is_refused_by_name(capsys: pytest.CaptureFixture[str], name: str) -> None:
    row = next(row for row in REFUSED if name in row.names)
    assert f"{name} is not supported: {row.instead}" in _refusal(capsys, "-np", "2", name, *["1"] * row.nargs, "x.py")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("x.py", "Give -np N"),
        ("-np 2", "what to run?"),
        ("-np 0 x.py", "not a number of ranks"),
        ("-np two x.py", "not a number of ranks"),
        ("-np ² x.py", "-np/--num-proc: '²' is not a number of ranks (1 to 4096)"),
        ("-np ٣ x.py", "'٣' is not a number of ranks (1 to 4096)"),
        ("-np 5000 x.py", "'5000' is not a number of ranks (1 to 4096)"),
        ("-np 2 --baseline gloo --repeat 0 x.py", "--repeat: '0' is not a number of runs (1 to 1000)"),
        ("-np 2 --baseline gloo --repeat 99999 x.py", "'99999' is not a number of runs (1 to 1000)"),
        ("-np 2 --baseline gloo --repeat ² x.py", "'²' is not a number of runs (1 to 1000)"),
        ("-np 2 --only-rank x x.py", "--only-rank: 'x' is not a rank (0 to 4095)"),
        ("-np 2 --only-rank -1 x.py", "--only-rank: '-1' is not a rank (0 to 4095)"),
        ("-np 2 --timeout x x.py", "--timeout: 'x' is not a positive number of seconds"),
        ("-np 2 --cache-capacity ² x.py", "--cache-capacity '²': expected a whole number"),
        ("-np 2 --epochs 3 x.py", "--epochs"),
        ("-np 2 -m", "-m needs a module"),
        ("-np 2 --engine local -H a:1,b:1 x.py", "a, b is not this machine"),
        ("-np 2 --engine ssh x.py", "on which hosts?"),
        ("-np 2 --engine slurm x.py", "no job of Slurm's"),
        ("-np 2 --net 1gbit -H a,b x.py", "leave out the hosts"),
        ("-np 4 -H localhost:2 x.py", "have 2 (write localhost:4)"),
        ("-np 2 -H localhost:: x.py", "^"),
        ("-np 2 --hostfile /nonexistent x.py", "No such file"),
        ("-np 2 -x 1A=2 x.py", "not a variable's name"),
        ("-np 2 -x LWCC_SECRET=2 x.py", "lwccrun itself sets"),
        ("-np 2 -x NOT_SET_ANYWHERE x.py", "not set here"),
        ("-np 2 --only-rank 2 x.py", "ranks are 0 to 1"),
        ("-np 2 --algorithm ring x.py", "allreduce=ring"),
        ("-np 2 --algorithm =ring x.py", "FILE.py:NAME"),
        ("-np 2 --algorithm allreduce= x.py", "FILE.py:NAME"),
        ("-np 2 --algorithm none.py:mine x.py", "there is no file none.py"),
        ("-np 2 --plugin libnone.so x.py", "libnone.so"),
        ("-np 2 --log-level loud x.py", "expected one of"),
        ("-np 2 --fusion-threshold-mb -1 x.py", "0 or more"),
        ("-np 2 --network-interfaces a,b x.py", "one interface"),
        ("-np 2 --timeout 0 x.py", "positive number"),
        ("-np 2 --timeout nan x.py", "positive number"),
        ("-np 2 --grace x x.py", "--grace"),
        ("-np 2 --log-dir a --output-filename b x.py", "not allowed with"),
    ],
)
def test_a_usage_error_says_what_is_wrong(capsys: pytest.CaptureFixture[str], argv: str, words: str) -> None:
    assert words in _refusal(capsys, *argv.split())


def test_files_of_algorithms_and_plugins_get_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "lib.so").touch()
    monkeypatch.chdir(tmp_path)
    argv = ["-np", "2", "--algorithm", "mine.py:a,allgather=mine.py:b,c=d,pkg.mod:e", "--plugin", "lib.so", "x.py"]
    spec = parse(argv)
    file = os.path.abspath("mine.py")
    assert spec.extra_env["LWCC_ALGORITHM"] == f"{file}:a,allgather={file}:b,c=d,pkg.mod:e"
    assert spec.extra_env["LWCC_PLUGIN"] == os.path.abspath("lib.so")


def test_local_hosts_are_accepted_in_every_form(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text(f"localhost slots=2 # here\n{socket.gethostname()}:2\n")
    assert sum(h.slots for h in parse(["-np", "4", "-hostfile", str(hostfile), "x.py"]).hosts) == 4
    assert parse(["-np", "2", "-H", "127.0.0.1:2", "x.py"]).hosts[0].slots == 2


def test_horovods_log_layout_is_asked_for_by_its_flag() -> None:
    assert parse(["-np", "2", "--output-filename", "d", "x"]) == LaunchSpec(
        np=2, command=("x",), hosts=parse(["-np", "2", "x"]).hosts, log_dir="d", horovod_log_layout=True
    )


def test_help_shows_every_mapped_flag_and_no_refused_one() -> None:
    text = build_parser().format_help()
    assert all(name in text for row in MAPPED for name in row.names)
    shown = {word.strip(",") for line in text.splitlines() if line.startswith("  -") for word in line.split()}
    assert not shown & {name for row in REFUSED for name in row.names}


def test_every_launchers_variables_agree() -> None:
    env = rank_environment({"TORCHELASTIC_RUN_ID": "x", "HOME": "/h", "RANK": "9"}, {"A": "1"}, _seat(1, 4), MEETING)
    assert env["LWCC_RANK"] == env["RANK"] == env["LOCAL_RANK"] == env["HOROVOD_LOCAL_RANK"] == "1"
    assert env["LWCC_SIZE"] == env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == env["HOROVOD_SIZE"] == "4"
    assert (env["HOROVOD_CROSS_RANK"], env["HOROVOD_CROSS_SIZE"]) == ("0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env["HOME"], env["A"]) == ("127.0.0.1", "7", "/h", "1")
    assert "TORCHELASTIC_RUN_ID" not in env
    assert MEETING.secret not in str(without_secret(env))


def test_thread_counts_are_set_only_if_the_user_has_not() -> None:
    assert int(rank_environment({}, {}, _seat(0, 1000), MEETING)["OMP_NUM_THREADS"]) == 1
    assert rank_environment({"OMP_NUM_THREADS": "5"}, {}, _seat(0, 2), MEETING)["OMP_NUM_THREADS"] == "5"
    assert rank_environment({}, {"OMP_NUM_THREADS": "6"}, _seat(0, 2), MEETING)["OMP_NUM_THREADS"] == "6"
