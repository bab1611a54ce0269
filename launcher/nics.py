"""This machine's network: its addresses, the ones that others likely reach first; listening; limits."""

from __future__ import annotations

import fcntl
import ipaddress
import re
import resource
import socket
import struct
from typing import NamedTuple

_SIOCGIFADDR, _SIOCGIFFLAGS = 0x8915, 0x8913
_IFF_UP, _IFF_LOOPBACK = 0x1, 0x8
_INNER = re.compile(r"(docker|br-|virbr|veth|cni|flannel|cali|lxc|lxd|podman|tailscale|tun|tap|kube)")


class Nic(NamedTuple):
    """One address of one interface that is up."""

    name: str
    address: str


def addresses(wanted: str = "") -> list[Nic]:
    """All addresses but the loopback's; those of containers' and virtual machines' bridges come last.

    wanted: only these: an interface's name, an address, or a subnet such as 10.0.0.0/8.
    """
    found = sorted(_ipv4() + _ipv6(), key=lambda nic: (bool(_INNER.match(nic.name)), ":" in nic.address))
    return [nic for nic in found if fits(nic, wanted)]


def fits(nic: Nic, wanted: str) -> bool:
    """Is nic the interface, the address, or in the subnet that is wanted? Everything fits ""."""
    if not wanted or wanted in (nic.name, nic.address):
        return True
    try:
        return ipaddress.ip_address(nic.address) in ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return False


def _ipv4() -> list[Nic]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                (flags,) = struct.unpack_from("H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)
                if not flags & _IFF_UP or flags & _IFF_LOOPBACK:
                    continue
                raw = fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24]
            except OSError:
                continue  # it has no IPv4 address, or has just gone
            found.append(Nic(name, socket.inet_ntoa(raw)))
    return found


def _ipv6() -> list[Nic]:
    """Global addresses: link-local ones mean nothing to other hosts without the interface."""
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []
    return [
        Nic(row[5], str(ipaddress.IPv6Address(int(row[0], 16)))) for row in rows if len(row) == 6 and row[3] == "00"
    ]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; host "*" means all addresses, IPv4 and IPv6. Raises OSError."""
    if host != "*":
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=4096)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=4096, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=4096)


def want_descriptors(peers: int) -> None:
    """Raise this process's limit, so that so many can connect: the one that shells set is often lower than need be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 256 + 4 * peers
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
