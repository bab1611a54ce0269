"""`lwcc k8s manifest`: a job for Kubernetes as YAML, without any operator: an Indexed Job and a headless Service.

Pod 0 serves the rendezvous under the name that the Service gives it; each pod is one rank. Only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")


def add_parser(verbs: Any) -> None:
    """Add the verb to the command line of `lwcc`."""
    parser = verbs.add_parser("k8s", help="print a manifest for Kubernetes")
    kinds = parser.add_subparsers(dest="kind", required=True)
    manifest = kinds.add_parser(
        "manifest",
        help="an Indexed Job and a headless Service",
        description="Print a job of N ranks, one in each pod: lwcc k8s manifest -np 4 --image IMAGE python train.py | "
        "kubectl apply -f -",
    )
    manifest.add_argument("-np", type=int, required=True, metavar="N", help="number of ranks, one in each pod")
    manifest.add_argument("--image", required=True, help="image with Python, lwcc and the script")
    manifest.add_argument("--name", default="lwcc-job", help="of the job (default %(default)s)")
    manifest.add_argument("--namespace", default="", help="default: that of kubectl")
    manifest.add_argument("--port", type=int, default=29400, help="of the rendezvous (default %(default)s)")
    manifest.add_argument("--cpu", default="", help="cores for each pod, as 2 or 500m")
    manifest.add_argument("--memory", default="", help="memory for each pod, as 4Gi")
    manifest.add_argument("--gpus", type=int, default=0, help="nvidia.com/gpu for each pod")
    manifest.add_argument("program", nargs=argparse.REMAINDER, help="what each rank runs")
    manifest.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the manifest. Raises ValueError for what Kubernetes would refuse."""
    command = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not _NAME.fullmatch(args.name):
        raise ValueError(f"lwcc: k8s --name {args.name!r}: small letters, digits, dashes; at most 52; a letter first")
    if not command or not 1 <= args.np <= 100_000 or not 0 < args.port < 65536:
        raise ValueError("lwcc: k8s: expected -np 1 to 100000, a port of 1 to 65535, and a command")
    print(manifest(args, command, os.urandom(32).hex()), end="")
    return 0


def manifest(args: argparse.Namespace, command: Sequence[str], secret: str) -> str:
    """The three objects as YAML: the secret of the job, the Service that gives pod 0 a name, the Job."""
    meta = {"name": args.name, **({"namespace": args.namespace} if args.namespace else {})}
    objects = [
        {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"secret": secret}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,  # the ranks meet before any is ready
                "selector": {"job-name": args.name},
            },
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": meta,
            "spec": {
                "completionMode": "Indexed",
                "completions": args.np,
                "parallelism": args.np,
                "backoffLimit": 0,  # a lost rank ends the job: the others have raised
                "template": {"spec": _pod(args, command)},
            },
        },
    ]
    head = f"# lwcc k8s manifest -np {args.np} --image {shlex.quote(args.image)} --name {args.name}\n"
    return head + "---\n".join(_yaml(thing, 0) for thing in objects)


def _pod(args: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """JOB_COMPLETION_INDEX, which says the rank, is set by Kubernetes itself."""
    limits = {"cpu": args.cpu, "memory": args.memory, "nvidia.com/gpu": str(args.gpus) if args.gpus else ""}
    chosen = {name: value for name, value in limits.items() if value}
    return {
        "restartPolicy": "Never",
        "subdomain": args.name,
        "containers": [
            {
                "name": "rank",
                "image": args.image,
                "command": list(command),
                "env": [
                    {"name": "LWCC_SIZE", "value": str(args.np)},
                    {"name": "MASTER_ADDR", "value": f"{args.name}-0.{args.name}"},
                    {"name": "MASTER_PORT", "value": str(args.port)},
                    {"name": "LWCC_SECRET", "valueFrom": {"secretKeyRef": {"name": args.name, "key": "secret"}}},
                ],
                **({"resources": {"limits": chosen}} if chosen else {}),
            }
        ],
    }


def _yaml(thing: Any, depth: int) -> str:
    """Mappings and lists in blocks, everything else as JSON, which YAML includes."""
    pad = "  " * depth
    lines = ""
    pairs = thing.items() if isinstance(thing, dict) else [("-", value) for value in thing]
    for key, value in pairs:
        lead = f"{pad}-" if key == "-" else f"{pad}{key}:"
        if not isinstance(value, (dict, list)) or not value:
            lines += f"{lead} {json.dumps(value)}\n"
        elif key == "-":
            lines += f"{lead} {_yaml(value, depth + 1).lstrip()}"
        else:
            lines += f"{lead}\n{_yaml(value, depth + 1)}"
    return lines
