"""The rendezvous store: real sockets on loopback, friends and strangers."""

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from lwcc.launcher import server as server_module
from lwcc.launcher import store
from lwcc.launcher.nics import want_descriptors
from lwcc.launcher.server import StoreServer
from lwcc.launcher.store import StoreClient

SECRET = bytes(range(32))


@pytest.fixture
def server() -> Iterator[StoreServer]:
    srv = StoreServer(secret=SECRET)
    yield srv
    srv.close()


@pytest.fixture
def client(server: StoreServer) -> Iterator[StoreClient]:
    cli = StoreClient(server.host, server.port, SECRET)
    yield cli
    cli.close()


def _until_closed(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    seen = b""
    try:
        while True:
            got = sock.recv(65536)
            if not got:
                return seen
            seen += got
    except ConnectionResetError:
        return seen


def test_a_value_set_by_one_client_is_read_by_another(server: StoreServer, client: StoreClient) -> None:
    other = StoreClient(server.host, server.port, SECRET)
    for value in (b"", b"\x00" * 10, os.urandom(300_000)):
        client.set("k", value)
        assert other.get("k", 5) == value == server.get("k", 0)
    assert other.try_get("absent") is None and server.try_get("absent") is None
    other.close()


def test_get_waits_until_another_thread_sets_the_key(server: StoreServer, client: StoreClient) -> None:
    got = []
    waiter = threading.Thread(target=lambda: got.append(client.get("late", 10)))
    waiter.start()
    client.set("early", b"1")  # the waiting get does not hold up this one
    assert not got
    server.set("late", b"here")
    waiter.join(10)
    assert got == [b"here"]


def test_a_timeout_names_the_key(server: StoreServer, client: StoreClient) -> None:
    with pytest.raises(TimeoutError, match="'addr/3'"):
        client.get("addr/3", 0.01)
    with pytest.raises(TimeoutError, match="'addr/4'"):
        server.get("addr/4", 0.01)


def test_add_is_atomic_over_threads(server: StoreServer, client: StoreClient) -> None:
    threads = [threading.Thread(target=lambda: [client.add("n", 1) for _ in range(50)]) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert client.add("n", -1) == 199
    assert server.get("n", 0) == b"199"


def test_prefix_lists_matching_keys_only(server: StoreServer, client: StoreClient) -> None:
    client.set("exit/1", b"a")
    client.set("exit/2", b"b")
    client.set("other", b"c")
    assert server.prefix("exit/") == {"exit/1": b"a", "exit/2": b"b"}


def test_a_client_with_another_secret_is_refused(server: StoreServer) -> None:
    with pytest.raises(ConnectionError, match="refused this job's secret"):
        StoreClient(server.host, server.port, b"x" * 32)


def test_a_client_refuses_a_server_that_does_not_know_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            sock, _ = listener.accept()
            sock.sendall(b"LWCCKV1\n" + b"n" * 32)
            sock.recv(1000)
            sock.sendall(b"p" * 32)
            _until_closed(sock)
            sock.close()

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(ConnectionError, match="does not know the secret"):
            StoreClient("127.0.0.1", listener.getsockname()[1], SECRET)
        thread.join(10)


def test_reflecting_the_servers_own_proof_does_not_authenticate(server: StoreServer) -> None:
    with socket.create_connection((server.host, server.port)) as sock:
        hello = sock.recv(40)
        nonce = hello[8:]
        sock.sendall(b"LWCCKV1\n" + nonce + store.proof(SECRET, b"server", nonce, nonce))
        assert _until_closed(sock) == b""


def test_garbage_is_dropped_and_others_are_served(server: StoreServer, client: StoreClient) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(20):
        with socket.create_connection((server.host, server.port)) as sock:
            try:
                sock.sendall(bytes(rng.randrange(256) for _ in range(rng.randrange(8, 200))))
            except OSError:
                pass
            assert len(_until_closed(sock)) <= 40
    client.set("k", b"v")
    assert server.prefix("") == {"k": b"v"}


def test_silent_strangers_are_dropped_and_block_nobody(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.2)
    monkeypatch.setattr(server_module, "MAX_STRANGERS", 64)
    silent = [socket.create_connection((server.host, server.port)) for _ in range(74)]
    friend = StoreClient(server.host, server.port, SECRET)
    friend.set("k", b"v")
    assert friend.get("k", 1) == b"v"
    for sock in silent:
        assert len(_until_closed(sock)) <= 40
        sock.close()
    friend.close()


@pytest.mark.parametrize("nbytes", [0, 0xFFFFFFFF])
def test_an_authenticated_peer_with_an_impossible_frame_is_dropped(
    server: StoreServer, client: StoreClient, nbytes: int
) -> None:
    sock = client._take()
    sock.sendall(struct.pack("!I", nbytes))
    assert _until_closed(sock) == b""
    sock.close()
    client.set("k", b"v")


def test_limits_are_errors_that_name_the_key(server: StoreServer, client: StoreClient) -> None:
    with pytest.raises(ValueError, match="'big'"):
        client.set("big", b"\0" * (store.MAX_VALUE_NBYTES + 1))
    with pytest.raises(ValueError, match="a key of 0 bytes"):
        client.set("", b"")
    client.set("word", b"abc")
    with pytest.raises(ValueError):
        client.add("word", 1)
    assert client.get("word", 1) == b"abc"  # a refused request leaves the connection usable


def test_a_closed_server_is_an_error_for_the_waiting_client(server: StoreServer, client: StoreClient) -> None:
    caught = []

    def wait() -> None:
        try:
            client.get("never", 30)
        except ConnectionError as error:
            caught.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    server.close()
    waiter.join(10)
    assert len(caught) == 1 and "store:" in caught[0]


def test_a_forked_child_uses_connections_of_its_own(server: StoreServer, client: StoreClient) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            client.set("child", b"1")
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert client.get("child", 5) == b"1"


def test_whoever_does_not_know_the_secret_is_named_but_not_endlessly() -> None:
    told: list[str] = []
    with_names = StoreServer(secret=SECRET, on_stranger=told.append)
    for number in range(8):
        with pytest.raises(ConnectionError):
            StoreClient("127.0.0.1", with_names.port, bytes([number]) * 32)
    with socket.create_connection(("127.0.0.1", with_names.port)):
        pass  # who looks and goes again says nothing wrong
    with_names.close()
    assert len(told) == server_module.MAX_NAMED
    assert all("dropped 127.0.0.1 port " in text and "does not know the job's secret" in text for text in told)
    assert told[-1].endswith("later ones are not told")


def test_ipv6_and_ipv4_reach_a_server_of_all_addresses() -> None:
    everywhere = StoreServer("*", 0, SECRET)
    hosts = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
    for host in hosts:
        reached = StoreClient(host, everywhere.port, SECRET)
        reached.set(host, b"v")
        assert reached.own_address() == host
        reached.close()
    assert sorted(everywhere.prefix("")) == sorted(hosts)
    everywhere.close()


def test_what_is_missing_of_a_gathering_is_listed_and_a_late_one_completes_it(
    server: StoreServer, client: StoreClient
) -> None:
    for number in (0, 3):
        server.set(f"p/{number}", b"%d" % number)
    with pytest.raises(store.Missing) as caught:
        client.gather("p", 5, 0.05)
    assert caught.value.numbers == [1, 2, 4]
    got: list[list[bytes]] = []
    waiter = threading.Thread(target=lambda: got.append(client.gather("p", 5, 20)))
    waiter.start()
    for number in (4, 1, 2):
        client.set(f"p/{number}", b"%d" % number)
    waiter.join(20)
    assert got == [[b"0", b"1", b"2", b"3", b"4"]] == [client.gather("p", 5, 0)]
    server.set("big", b"\0" * store.MAX_VALUE_NBYTES)
    for number in range(2):
        server.set(f"big/{number}", b"\0" * store.MAX_VALUE_NBYTES)
    with pytest.raises(ValueError, match="too much"):
        client.gather("big", 2, 5)


def test_a_thousand_ranks_meet_with_one_thread_and_one_descriptor_each() -> None:
    ranks = 1000
    want_descriptors(ranks)
    big = StoreServer("127.0.0.1", 0, SECRET)
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    clients = [StoreClient("127.0.0.1", big.port, SECRET) for _ in range(ranks - 1)]
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors + 2 * len(clients)  # both ends are here
    for rank, one in enumerate(clients):
        one.set(f"started/{rank}", b"1")
        one.set(f"e/endpoint/{rank}", b"%0250d" % rank)
    right = [b"%0250d" % rank for rank in range(ranks)]
    wrong: list[int] = []

    def gather(mine: list[StoreClient]) -> None:
        for one in mine:
            wrong.extend([1] * (one.gather("e/endpoint", ranks, 60) != right))

    workers = [threading.Thread(target=gather, args=(clients[i::50],)) for i in range(50)]
    for worker in workers:
        worker.start()
    last = StoreClient("127.0.0.1", big.port, SECRET)
    last.set(f"e/endpoint/{ranks - 1}", right[-1])  # releases the others
    for worker in workers:
        worker.join(60)
    assert not wrong and last.gather("e/endpoint", ranks, 10) == right
    for one in [*clients, last]:
        one.close()
    big.close()
