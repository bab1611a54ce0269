"""docs/horovod-compat-tensorflow.md: every name of Horovod's TensorFlow and Keras interfaces, and which case covers it.

The table is generated: `python tests/tf/test_horovod_table.py` writes it, and the test compares.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "horovod-compat-tensorflow.md"
SAME, NOT_HERE = "as Horovod", "not here"
PLAIN = """shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
Average Sum Min Max Product ProcessSet add_process_set remove_process_set global_process_set"""
NO_MPI, WITHOUT_MPI = "mpi_threads_supported mpi_enabled mpi_built", "gloo_enabled gloo_built"
NOT_BUILT = "nccl_built ddl_built ccl_built cuda_built rocm_built"
COMMON = {  # name -> what differs; "" where nothing does
    **dict.fromkeys(PLAIN.split(), ""),
    "init": "`comm`: only all ranks; also takes rank, size, rendezvous, secret, timeout",
    "Adasum": "any number of ranks",
    "Compression": "also `bf16`; averages are taken after widening",
    "start_timeline": "every rank, one pid each; at any time",
    "stop_timeline": "ends this rank's part",
    "HorovodInternalError": "another name of `LwccError`; TensorFlow's ops raise `tf.errors.OpError`",
    "HostsUpdatedInterrupt": "never raised by a fixed set of ranks",
    "HorovodVersionMismatchError": "never raised: nothing is built for a version",
    "run": "also `np`, `env`, `timeout`; elastic, ssh and MPI arguments are refused by name",
    **dict.fromkeys(NO_MPI.split(), "False"),
    **dict.fromkeys(WITHOUT_MPI.split(), "True: works without MPI"),
    **dict.fromkeys(NOT_BUILT.split(), "0 or False"),
    "elastic": NOT_HERE,
    "data": NOT_HERE,
}
OPTIMIZER = (
    "of Keras 3 and tf_keras, not of TensorFlow 1; an instance of a subclass of the optimizer's class, saved as "
    "that; `op` and `groups` hold; Adasum reduces steps"
)
TENSORFLOW = {
    "allreduce": "scale factors have the precision of a double; also `algorithm`, as the next ones",
    **dict.fromkeys(["grouped_allreduce", "grouped_allgather", "broadcast", "alltoall", "grouped_reducescatter"], ""),
    "allgather": "scalars are gathered as rows",
    "broadcast_": "as one unit, by one copy within a node",
    "reducescatter": "a scalar is a ValueError",
    "join": "for every collective and op, with neutral elements; Average divides by the contributing ranks; "
    "`process_set`; also in functions",
    **dict.fromkeys(["rank_op", "size_op", "local_rank_op", "local_size_op", "process_set_included_op"], ""),
    "broadcast_variables": "in a graph of TensorFlow 1 it returns the op; different numbers are an error at once",
    "broadcast_object": "eager only; `session` is ignored",
    "broadcast_object_fn": "eager only; `session` is ignored",
    "allgather_object": "eager only; lengths of 64 bits",
    "broadcast_global_variables": "",
    "BroadcastGlobalVariablesHook": "",
    "DistributedOptimizer": OPTIMIZER,
    "DistributedGradientTape": "Adasum too: for each gradient",
    "PartialDistributedGradientTape": "",
    "SyncBatchNormalization": "batches of any size; `process_set`; `mask`",
}
KERAS = {
    "DistributedOptimizer": OPTIMIZER,
    "PartialDistributedOptimizer": "layers are to be built before",
    **dict.fromkeys(["allreduce", "allgather", "broadcast", "reducescatter"], "numpy arrays"),
    "broadcast_global_variables": NOT_HERE,
    "load_model": "Keras loads; the optimizer is distributed then",
    "callbacks.BroadcastGlobalVariablesCallback": "builds the optimizer first, so that one rank may have loaded it",
    "callbacks.MetricAverageCallback": "",
    "callbacks.LearningRateScheduleCallback": "`momentum_correction` changes nothing",
    "callbacks.LearningRateWarmupCallback": "`momentum_correction` changes nothing",
    "callbacks.BestModelCheckpoint": "saves on rank 0; `filepath` defaults to best.keras",
}
MODULES = (
    ("lwcc_tf", "hvd", {**COMMON, **TENSORFLOW}),
    ("lwcc_tf.keras", "hvdk", {**COMMON, **KERAS}),
)


def uses(prefix: str) -> dict[str, str]:
    """Return for each attribute of a module that a case uses the first one that does."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("cases_*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("case_"):
                continue
            text = ast.unparse(node)
            names = re.findall(rf"\b{prefix}\.((?:callbacks\.)?\w+)", text)
            if prefix == "hvdk":
                names += [name.partition(".")[2] or name for name in re.findall(r"\bhvdk?\.callbacks\.\w+", text)]
            if "for module in (hvd, hvdk)" in text:
                names += re.findall(r"\bmodule\.(\w+)", text)
            for name in names:
                found.setdefault(name, f"`{path.name}`: {node.name}")
    return found


def page() -> str:
    """Return the text that the page has to have."""
    lines = [
        "# Horovod's interfaces in lwcc_tf and lwcc_tf.keras",
        "",
        "`import lwcc_tf as hvd`, `import lwcc_tf.keras as hvd`. Generated by",
        "`python tests/tf/test_horovod_table.py`; do not edit. All cases run on real ranks.",
    ]
    for module, prefix, names in MODULES:
        covered = uses(prefix)
        lines += ["", f"## {module}", "", "| name | status | what differs | covered by |", "|---|---|---|---|"]
        for name, note in names.items():
            status = SAME if not note else NOT_HERE if note == NOT_HERE else "differs"
            what = "the AttributeError says what is instead" if status == NOT_HERE else note
            lines.append(f"| `{name}` | {status} | {what} | {covered.get(name, 'nothing')} |")
    return "\n".join(
        [
            *lines,
            "",
            "A wrong argument is a ValueError from the call, or an InvalidArgumentError where only the op can tell: a",
            "root or splits out of range, a rank that is no member. What ranks disagree about is a",
            "FailedPreconditionError on every rank, also where one call has different numbers of tensors, and the job",
            "goes on. What a rank never asks for, as the gradient of a layer that is frozen there alone, may instead",
            "be a DeadlineExceededError that names the ranks without it, after 60 s (`LWCC_STALL_ABORT`). In functions",
            "that XLA compiles, in tf.vectorized_map and in parallel ones of tf.data, collectives are refused with",
            "advice.",
            "",
        ]
    )


def test_every_name_is_there_and_covered_and_the_page_says_so() -> None:
    pytest.importorskip("tensorflow")
    for module, prefix, names in MODULES:
        loaded = pytest.importorskip(module)
        covered = uses(prefix)
        assert [name for name in names if name not in covered] == []
        for name, note in names.items():
            if note == NOT_HERE:
                with pytest.raises(AttributeError, match=f"has no {name}: it is"):
                    getattr(loaded, name)
                continue
            value = loaded
            for part in name.split("."):
                value = getattr(value, part)
    assert PAGE.read_text() == page(), "run python tests/tf/test_horovod_table.py"


if __name__ == "__main__":
    PAGE.write_text(page())
