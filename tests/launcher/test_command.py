"""What users see of lwccrun when all goes well: output, logs, environment, help, speed of the start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lwcc.launcher import logdir
from lwcc.launcher.args import parse
from lwcc.launcher.spawn import CannotRun


def test_lines_of_eight_ranks_are_never_split_or_lost(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import os, random\nr = int(os.environ['RANK'])\nrng = random.Random(r)\n"
        "for i in range(300):\n"
        "    line = f'{r}:{i}:' + 'x' * rng.randrange(3000) + ':end\\n'\n"
        "    cut = rng.randrange(len(line))\n"
        "    for part in (line[:cut], line[cut:]):\n"
        "        os.write(1 + i % 2, part.encode())\n"
        "os.write(1, f'{r}:last:end'.encode())\n"
    )
    code, out, err = lwccrun("-np", "8", script).finish()
    assert code == 0
    for rank in range(8):
        for text, parity in ((out, 0), (err, 1)):
            mine = [line[4:] for line in text.splitlines() if line.startswith(f"[{rank}] ")]
            assert all(line.startswith(f"{rank}:") and line.endswith(":end") for line in mine)
            numbers = [line.split(":")[1] for line in mine]
            assert numbers == [str(i) for i in range(parity, 300, 2)] + ["last"] * (parity == 0)
    assert len(out.splitlines()) == 8 * 151 and len(err.splitlines()) == 8 * 150


def test_rank_0_reads_standard_input_and_the_others_nothing(lwccrun: Any) -> None:
    job = lwccrun("-np", "3", "sh", "-c", "echo got $(cat)", stdin=subprocess.PIPE)
    code, out, _ = job.finish(b"hello")
    assert code == 0 and sorted(out.splitlines()) == ["[0] got hello", "[1] got", "[2] got"]


def test_no_tag_and_only_rank_choose_what_is_shown(lwccrun: Any) -> None:
    args = ("sh", "-c", "printf 'r%s\\0' $RANK")
    assert lwccrun("-np", "3", "--no-tag", "--only-rank", "1", *args).finish()[1] == "r1\0"
    assert lwccrun("-np", "12", "--only-rank", "2", *args).finish()[1] == "[ 2] r2\0\n"


def test_a_reader_that_leaves_ends_the_job_quietly(lwccrun: Any) -> None:
    read_end, write_end = os.pipe()
    job = lwccrun("-np", "2", "sh", "-c", "while :; do echo y; done", stdout=write_end)
    os.close(write_end)
    assert os.read(read_end, 1) == b"["
    os.close(read_end)
    _, err = job.process.communicate(timeout=30)
    assert (job.process.returncode, err) == (141, b"")
    assert job.leftovers() == []


def test_the_log_directory_holds_every_rank_and_the_run(lwccrun: Any, tmp_path: Path) -> None:
    logs = tmp_path / "deep" / "logs"
    os.mkfifo(tmp_path / "turn")
    job = lwccrun(
        "-np", "2", "--log-dir", str(logs), "-x", "A=1", "sh", "-c",
        "echo o$RANK; printf e$RANK >&2; echo $LWCC_SECRET > secret.$RANK; "
        "[ $RANK = 0 ] && echo > turn || read x < turn; exit $((RANK * 4))",
        cwd=tmp_path,
    )  # fmt: skip
    code, _, err = job.finish()
    assert code == 4 and f"full output in {logs}" in err
    for rank in (0, 1):
        assert (logs / f"rank-{rank}" / "stdout.log").read_text() == f"o{rank}\n"
        assert (logs / f"rank-{rank}" / "stderr.log").read_text() == f"e{rank}"
    text = (logs / "run.json").read_text()
    run = json.loads(text)
    assert run["ranks"][1]["exit"] == "exit code 4"
    assert (run["np"], run["exit_code"], run["command"][0]) == (2, 4, "sh")
    assert run["env_of_rank_0"]["A"] == "1" and run["ended"] >= run["started"]
    secret = (tmp_path / "secret.0").read_text().strip()
    assert len(secret) == 64 and secret == (tmp_path / "secret.1").read_text().strip()
    assert secret not in text


@pytest.mark.parametrize("code", [0, 3])
def test_a_full_disk_at_the_end_does_not_change_the_exit_code(lwccrun: Any, tmp_path: Path, code: int) -> None:
    logs = tmp_path / "logs"
    text = f"[ $RANK = 0 ] || exit 0; ln -s /dev/full {logs}/run.json.part; exit {code}"
    got, _, err = lwccrun("-np", "2", "--log-dir", str(logs), "sh", "-c", text).finish()
    assert got == code
    assert err.splitlines()[-1] == f"lwccrun: {logs}/run.json cannot be written: No space left on device"
    assert sorted(path.name for path in logs.iterdir()) == ["rank-0", "rank-1", "run.json"]
    assert json.loads((logs / "run.json").read_text())["ended"] is None  # as it was known at the start


def test_a_folder_of_somebody_else_is_refused_before_anything_starts(tmp_path: Path, capsys: Any) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # root may write everywhere
    try:
        for path in (theirs, theirs / "deep" / "logs"):
            with pytest.raises(SystemExit) as ended:
                parse(["-np", "2", "--log-dir", str(path), "true"])
            assert ended.value.code == 2
            assert capsys.readouterr().err == f"lwccrun: --log-dir {path}: Permission denied\n"
        with pytest.raises(CannotRun, match=f"^--log-dir {theirs}/x: Permission denied$"):
            logdir.make(str(theirs / "x"), "--log-dir")
    finally:
        if root:
            os.seteuid(0)
    assert logdir.fault("") == "" and logdir.fault(str(tmp_path / "a" / "b")) == "" and not list(theirs.iterdir())


def test_horovods_log_layout(lwccrun: Any, tmp_path: Path) -> None:
    job = lwccrun("-np", "11", "--output-filename", str(tmp_path / "h"), "sh", "-c", "echo o$RANK; echo e >&2")
    assert job.finish()[0] == 0
    assert (tmp_path / "h" / "rank.03" / "stdout").read_text() == "o3\n"
    assert (tmp_path / "h" / "rank.10" / "stderr").read_text() == "e\n"


def test_a_module_and_a_script_run_with_this_python(lwccrun: Any, tmp_path: Path) -> None:
    (tmp_path / "some_module.py").write_text("import sys; print(sys.executable, sys.argv[1:])")
    expected = f"[0] {sys.executable} ['--np', '3']\n"
    assert lwccrun("-np", "1", "-m", "some_module", "--np", "3", cwd=tmp_path).finish()[1] == expected
    assert lwccrun("-np", "1", str(tmp_path / "some_module.py"), "--np", "3").finish()[1] == expected


def test_the_secret_is_on_no_command_line(lwccrun: Any) -> None:
    script = lwccrun.script(
        "import glob, os\nsecret = os.environ['LWCC_SECRET'].encode()\nfound = 0\n"
        "for path in glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: found += secret in open(path, 'rb').read()\n"
        "    except OSError: pass\n"
        "print(len(secret), found)"
    )
    assert lwccrun("-np", "1", script).finish()[1] == "[0] 64 0\n"


def test_threads_are_limited_and_one_line_says_so(lwccrun: Any) -> None:
    env = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    command = [
        sys.executable,
        "-m",
        "lwcc.launcher",
        "-np",
        "64",
        "--only-rank",
        "9",
        "sh",
        "-c",
        "echo $OMP_NUM_THREADS",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[ 9] 1\n"
    assert done.stderr == "lwccrun: OMP_NUM_THREADS=1 for each rank (set it yourself to change that)\n"
    assert (
        lwccrun("-np", "1", "sh", "-c", "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "7"}).finish()[1] == "[0] 7\n"
    )


def test_default_signals_are_restored_in_the_ranks(lwccrun: Any) -> None:
    code, out, _ = lwccrun("-np", "1", "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status").finish()
    assert code == 0
    masks = [int(line.split()[-1], 16) for line in out.splitlines()]
    assert len(masks) == 2
    # 32 and 33 are the C library's own: its posix_spawn, as make uses it, leaves one ignored
    assert [mask & ~(0b11 << 31) for mask in masks] == [0, 0]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("no_such_script.py",), 127, "no such script: no_such_script.py"),
        (("no-such-command-here",), 127, "command not found: no-such-command-here"),
        (("/etc/passwd",), 126, "/etc/passwd is not executable"),
        (("--nonsense", "x.py"), 2, "--nonsense"),
        (("--log-dir", "/proc/nowhere", "true"), 2, "lwccrun: --log-dir /proc/nowhere: No such file or directory"),
        (("--log-dir", "/etc/passwd", "true"), 2, "lwccrun: --log-dir /etc/passwd: it is a file"),
        (("--log-dir", "/etc/passwd/x", "true"), 2, "lwccrun: --log-dir /etc/passwd/x: /etc/passwd is a file"),
        (("--output-filename", "/dev/null", "true"), 2, "lwccrun: --output-filename /dev/null: it is no folder"),
        (("--baseline", "gloo", "--log-dir", "/etc/passwd", "true"), 2, "--log-dir /etc/passwd: it is a file"),
        (("--baseline", "gloo", "--log-dir", "/proc/nowhere", "true"), 2, "lwccrun: --log-dir /proc/nowhere: No such"),
    ],
)
def test_what_cannot_start_is_one_clear_line(lwccrun: Any, args: tuple[str, ...], code: int, words: str) -> None:
    got, out, err = lwccrun("-np", "2", *args).finish()
    assert (got, out) == (code, "")
    assert words in err and len(err.splitlines()) <= 2


def test_dry_run_shows_the_plan_without_the_secret(lwccrun: Any) -> None:
    code, out, _ = lwccrun("-np", "2", "--dry-run", "--algorithm", "allreduce=ring", "echo", "a b").finish()
    assert code == 0
    assert "echo 'a b'" in out and "LWCC_ALGORITHM=allreduce=ring" in out
    assert "LWCC_RANK=1" in out and "LWCC_SECRET='(hidden)'" in out


def test_check_build_lists_what_is_there(lwccrun: Any) -> None:
    code, out, _ = lwccrun("--check-build").finish()
    assert code == 0 and out.startswith("LWCC ")
    assert "    [X] LWCC rendezvous store" in out and "    [ ] NCCL" in out


def test_help_and_version(lwccrun: Any) -> None:
    code, out, _ = lwccrun("--help").finish()
    assert code == 0 and all(word in out for word in ("-np", "--only-rank", "exit code:", "examples:"))
    assert max(len(line) for line in out.splitlines()) <= 120
    assert lwccrun("--version").finish()[1].startswith("lwccrun ")


def test_the_launcher_imports_neither_frameworks_nor_the_core() -> None:
    code = (
        "import pkgutil, sys, importlib, lwcc.launcher as l\n"
        "for m in pkgutil.iter_modules(l.__path__):\n"
        "    if m.name != '__main__': importlib.import_module('lwcc.launcher.' + m.name)\n"
        "print([m for m in ('torch', 'numpy', 'tensorflow', 'cffi', 'lwcc._native') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
