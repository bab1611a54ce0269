"""Whose variables count, what contradicts, and where ranks meet without a launcher of ours."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from lwcc import meeting
from lwcc.errors import LwccError, Timeout
from lwcc.launcher.store import StoreClient
from lwcc.launchers import Place, find_place

SRUN = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
SRUN_NODES = {**SRUN, "SLURM_STEP_NODELIST": "n[07-08],m1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_NAMESPACE": "prterun-h-1@1"}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_FD": "9"}
ELASTIC = {"TORCHELASTIC_RUN_ID": "x", "RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("env", "scheme", "host", "source"),
    [
        (SRUN_NODES, "slurm", "n07", "srun"),
        (OPEN_MPI, "file", "prterun-h-1@1", "Open MPI"),
        (HYDRA, "pmi", "", "MPICH or Intel MPI"),
        (ELASTIC, "master", "h", "torchrun"),
        ({**SRUN_NODES, **ELASTIC}, "master", "h", "torchrun"),
        ({**SRUN_NODES, **OPEN_MPI}, "file", "prterun-h-1@1", "Open MPI"),
        ({**SRUN_NODES, "PMI_RANK": "2", "PMI_SIZE": "4"}, "slurm", "n07", "srun"),
        ({**SRUN_NODES, "RANK": "2", "WORLD_SIZE": "4"}, None, "", ""),
        ({"JOB_COMPLETION_INDEX": "2", "LWCC_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, "master", "h", "Kub"),
    ],
)
def test_the_innermost_launcher_tells_rank_size_and_meeting_point(
    env: dict[str, str], scheme: str, host: str, source: str
) -> None:
    if scheme is None:  # plain variables alone say no address
        with pytest.raises(ValueError, match="nothing says where the ranks meet"):
            find_place(env)
        return
    place = find_place(env)
    assert (place.rank, place.size, place.scheme, place.host) == (2, 4, scheme, host)
    assert place.source.startswith(source)


@pytest.mark.parametrize(
    "env",
    [
        {**OPEN_MPI, "RANK": "0", "WORLD_SIZE": "1"},  # left over from a shell: eight jobs of one rank
        {**HYDRA, "RANK": "2", "WORLD_SIZE": "3"},
        {**SRUN_NODES, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},  # an MPI that srun did not connect
        {**SRUN_NODES, "PMI_RANK": "0", "PMI_SIZE": "1", "MPI_LOCALRANKID": "0"},
        {**SRUN_NODES, "TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "1"},
    ],
)
def test_launchers_that_contradict_each_other_are_both_named(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"contradict .*which job is this process part of\? Unset"):
        find_place(env)
    assert find_place({**env, "LWCC_RANK": "0", "LWCC_SIZE": "1"}).size == 1


@pytest.mark.parametrize("step", ["4294967291", "4294967290"])
def test_a_batch_script_and_an_interactive_shell_of_slurm_are_no_ranks(step: str) -> None:
    assert find_place({**SRUN_NODES, "SLURM_PROCID": "0", "SLURM_STEP_ID": step}).scheme == "alone"


def test_two_steps_of_slurm_meet_at_different_ports_that_the_kernel_does_not_hand_out() -> None:
    ports = {find_place({**SRUN_NODES, "SLURM_STEP_ID": str(step)}).port for step in range(50)}
    assert len(ports) == 50 and all(10000 <= port < 30000 for port in ports)


def test_a_nodes_name_that_means_nothing_here_is_told_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LwccError, match=r"nosuch\.invalid.*Set MASTER_ADDR"):
        meeting.settle(Place(1, 2, "slurm", "nosuch.invalid", 1), 1)


def test_ranks_of_open_mpi_meet_by_a_file_that_only_they_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    places = [Place(r, 2, "file", "prterun-test@1", listen="127.0.0.1") for r in range(2)]
    stale = tmp_path / "lwcc" / "unused"
    with pytest.raises(Timeout, match="rank 0 has not told its address"):
        meeting.settle(places[1], 0.1)
    found = []
    waiter = threading.Thread(target=lambda: found.append(meeting._by_file(places[1], meeting.time.monotonic() + 20)))
    waiter.start()
    settled = meeting.settle(places[0], 20)
    waiter.join(20)
    (file,) = (tmp_path / "lwcc").iterdir()
    assert not stale.exists() and file.stat().st_mode & 0o777 == 0o600
    assert found == [f"127.0.0.1:{settled.port};{settled.secret.hex()}"]
    client = StoreClient(settled.host, settled.port, settled.secret)
    client.set("k", b"v")
    client.close()
    meeting._settled.clear()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    file.write_text(f"127.0.0.1:{port};{'00' * 32}")  # as a job that was killed leaves it
    with pytest.raises(LwccError, match="reaches rank 0 at none of"):
        meeting.settle(places[1], 0.3)


def _hydra(sock: socket.socket, value: dict[str, str]) -> None:
    """One process's side of an MPI's launcher."""
    answers = {
        "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
        "get_my_kvsname": "cmd=my_kvsname kvsname=kvs_1",
        "barrier_in": "cmd=barrier_out",
    }
    with sock, sock.makefile("rw") as file:
        for line in file:
            words = dict(word.split("=", 1) for word in line.split())
            answer = answers.get(words["cmd"], "")
            if words["cmd"] == "put":
                value[words["key"]] = words["value"]
                answer = "cmd=put_result rc=0 msg=success"
            elif words["cmd"] == "get":
                known = words["key"] in value
                answer = f"cmd=get_result rc={0 if known else -1} msg=m value={value.get(words['key'], '')}"
            file.write(answer + "\n")
            file.flush()


def test_ranks_of_mpich_meet_by_its_launchers_board() -> None:
    value: dict[str, str] = {}
    settled = []
    for rank in range(2):
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=_hydra, args=(theirs, value))
        thread.start()
        place = Place(rank, 2, "pmi", port=ours.fileno(), listen="127.0.0.1")
        meeting._settled.clear()
        settled.append(meeting.settle(place, 20))
        meeting.atexit.unregister(meeting._leave_pmi)
        ours.close()
        thread.join(20)
    assert settled[0].scheme == "lwcc" and settled[0][3:6] == settled[1][3:6] and len(settled[0].secret) == 32


def test_a_silent_or_refusing_board_is_an_error_in_time() -> None:
    ours, theirs = socket.socketpair()
    place = Place(1, 2, "pmi", port=ours.fileno())
    meeting._settled.clear()
    with pytest.raises(Timeout, match="cmd=init"):
        meeting.settle(place, 0.1)
    theirs.sendall(b"cmd=response_to_init rc=-1\n")
    with pytest.raises(LwccError, match="answered cmd=init"):
        meeting.settle(place, 5)
    theirs.close()
    with pytest.raises(LwccError, match="line to"):
        meeting.settle(place, 5)
    ours.close()
    with pytest.raises(LwccError, match=r"PMI_FD=\d+"):
        meeting.settle(Place(1, 2, "pmi", port=os.open("/dev/null", os.O_RDONLY)), 5)
