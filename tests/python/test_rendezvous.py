from __future__ import annotations

import threading

import pytest

from lwcc import rendezvous
from lwcc.errors import LwccError, SystemFailure, Timeout
from lwcc.launcher.server import StoreServer
from lwcc.launcher.store import StoreClient

SECRET = bytes(range(32))
LWCC = {"LWCC_RANK": "1", "LWCC_SIZE": "3", "LWCC_RENDEZVOUS": "127.0.0.1:99", "LWCC_SECRET": SECRET.hex()}
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2900"}


def test_nothing_set_is_a_job_of_one() -> None:
    assert rendezvous.find_place({})[:3] == (0, 1, "alone")


def test_the_launcher_goes_before_all_others() -> None:
    env = {**LWCC, **MASTER, "RANK": "0", "WORLD_SIZE": "7", "OMPI_COMM_WORLD_RANK": "5", "LWCC_GENERATION": "4"}
    place = rendezvous.find_place(env)
    assert place[:5] == (1, 3, "lwcc", "127.0.0.1", 99)
    assert (place.secret, place.generation) == (SECRET, 4)


@pytest.mark.parametrize(
    ("variables", "scheme"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, "master"),
        ({"RANK": "2", "WORLD_SIZE": "4", "TORCHELASTIC_USE_AGENT_STORE": "True"}, "torchelastic"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, "master"),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, "master"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, "master"),
    ],
)
def test_other_launchers_are_understood(variables: dict[str, str], scheme: str) -> None:
    assert rendezvous.find_place({**variables, **MASTER})[:5] == (2, 4, scheme, "127.0.0.1", 2900)


def test_the_batch_script_of_slurm_is_no_rank() -> None:
    assert rendezvous.find_place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}).size == 1


def test_a_missing_meeting_point_says_what_to_set() -> None:
    with pytest.raises(
        ValueError, match=r"Open MPI started this process as rank 2 of 4.*Set MASTER_ADDR and MASTER_PORT"
    ):
        rendezvous.find_place({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"LWCC_RANK": "3"}, "rank must be in 0..size-1"),
        ({"LWCC_RANK": "one"}, "not a whole number"),
        ({"LWCC_RENDEZVOUS": "nowhere"}, "not host:port"),
        ({"LWCC_RENDEZVOUS": "h:70000"}, "not host:port"),
        ({"LWCC_SECRET": "zz"}, "not hexadecimal"),
        ({"LWCC_SECRET": "00"}, "expected 32"),
    ],
)
def test_senseless_variables_are_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rendezvous.find_place({**LWCC, **change})


def test_a_missing_size_is_named() -> None:
    with pytest.raises(ValueError, match="LWCC_SIZE is not set"):
        rendezvous.find_place({"LWCC_RANK": "0"})


def test_endpoints_reach_every_rank_in_rank_order() -> None:
    server = StoreServer("127.0.0.1", 0, SECRET)
    found: dict[int, list[bytes]] = {}

    def one(rank: int) -> None:
        place = rendezvous.Place(rank, 3, "lwcc", "127.0.0.1", server.port, SECRET)
        store, secret = rendezvous.connect(place, 10)
        found[rank] = [*rendezvous.exchange(store, "p", place, b"at%d" % rank, 10), secret]
        store.close()

    threads = [threading.Thread(target=one, args=(r,)) for r in (2, 0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    server.close()
    assert found[0][:3] == [b"at0", b"at1", b"at2"]
    assert found[0] == found[1] == found[2]
    assert found[0][3] != SECRET


def test_ranks_that_do_not_arrive_are_named() -> None:
    server = StoreServer("127.0.0.1", 0, SECRET)
    place = rendezvous.Place(1, 4, "lwcc", "127.0.0.1", server.port, SECRET)
    store, _ = rendezvous.connect(place, 10)
    store.set("p/endpoint/2", b"x")
    with pytest.raises(Timeout, match=r"missing: rank 0, 3 of 4"):
        rendezvous.exchange(store, "p", place, b"x", 0.1)
    store.close()
    server.close()


def test_a_wrong_secret_is_refused_at_once() -> None:
    server = StoreServer("127.0.0.1", 0, SECRET)
    with pytest.raises(LwccError, match="found no rendezvous"):
        rendezvous.connect(rendezvous.Place(1, 2, "lwcc", "127.0.0.1", server.port, bytes(32)), 10)
    server.close()


def test_a_taken_port_is_explained() -> None:
    other = StoreServer("127.0.0.1", 0, SECRET)
    with pytest.raises(SystemFailure, match="set MASTER_PORT to a free one"):
        rendezvous.connect(rendezvous.Place(0, 2, "master", "127.0.0.1", other.port, b""), 1)
    other.close()


def test_rank_0_serves_and_all_agree_on_a_secret() -> None:
    probe = StoreServer("127.0.0.1", 0, SECRET)
    port = probe.port
    probe.close()
    secrets = [rendezvous.connect(rendezvous.Place(r, 2, "master", "127.0.0.1", port), 10)[1] for r in (0, 1, 0)]
    assert secrets[0] == secrets[1] == secrets[2]
    assert len(secrets[0]) == 32


def test_the_local_address_is_that_of_the_route() -> None:
    assert rendezvous.local_address(rendezvous.Place(0, 2, "lwcc", "127.0.0.1", 99)) == "127.0.0.1"
    assert rendezvous.local_address(rendezvous.Place(0, 1, "alone")) is None


def test_the_store_client_speaks_our_protocol() -> None:
    server = StoreServer("127.0.0.1", 0, SECRET)
    client: rendezvous.Store = StoreClient("127.0.0.1", server.port, SECRET)
    client.set("k", b"v")
    assert client.get("k", 1) == b"v"
    client.close()
    server.close()
