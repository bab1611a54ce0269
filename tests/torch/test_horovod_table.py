"""docs/horovod-compat.md: every public name of Horovod's torch interface, what stands behind it, which case covers it.

The table is generated: `python tests/torch/test_horovod_table.py` writes it, and the test compares.
"""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "horovod-compat.md"
SAME = "as Horovod"
PLAIN = """shutdown is_initialized rank size local_rank local_size cross_rank cross_size is_homogeneous
Average Sum Min Max Product ProcessSet add_process_set remove_process_set global_process_set
allreduce allreduce_ allreduce_async allreduce_async_ grouped_allreduce grouped_allreduce_ grouped_allreduce_async
grouped_allreduce_async_ allgather allgather_async grouped_allgather grouped_allgather_async
broadcast broadcast_ broadcast_async broadcast_async_ alltoall alltoall_async
reducescatter reducescatter_async grouped_reducescatter grouped_reducescatter_async barrier poll synchronize
broadcast_object"""
NO_MPI, WITHOUT_MPI = "mpi_threads_supported mpi_enabled mpi_built", "gloo_enabled gloo_built"
NOT_BUILT = "nccl_built ddl_built ccl_built cuda_built rocm_built"
NAMES = {  # name -> what differs; "" where nothing does
    **dict.fromkeys(PLAIN.split(), ""),
    "init": "`comm`: only all ranks; also takes rank, size, rendezvous, secret, timeout",
    "Adasum": "any number of ranks (binary tree in rank order; Maleki et al., MLSys 2021), in double, on slices: sends "
    "2(p-1)/p of the tensor, keeps one more in memory, multiplies (p+1)/2 times for each element",
    "join": "for every collective and op, with neutral elements; Average divides by the contributing ranks; "
    "`process_set`",
    "sparse_allreduce_async": "the result is a handle for `synchronize`, and can be called as Horovod's",
    "allgather_object": "also `process_set`; lengths of 64 bits",
    "broadcast_parameters": "any iterable; `process_set`",
    "broadcast_optimizer_state": "takes no step, so no parameter moves",
    "Compression": "also `bf16`; averages are taken after widening",
    "DistributedOptimizer": "also `bucket_bytes`; predivision and sparse_as_dense hold for groups too; a gradient that "
    "some ranks lack counts as zero; `zero_grad` waits for gradients that are wholly in flight and drops them "
    "(Horovod: AssertionError), so that a generator's loss may fill its discriminator's; after a failed backward "
    "`step` refuses until `zero_grad`",
    "SyncBatchNorm": "on CPU; batches of any size, also empty; `process_set`",
    "start_timeline": "every rank, one pid each; at any time; LWCC_TIMELINE or HOROVOD_TIMELINE start one at init; "
    "to read it while the job runs take a shared flock",
    "stop_timeline": "ends this rank's part",
    "elastic.run": "a lost rank ends it (after going back to the last commit); `Mismatch` is never retried",
    "elastic.TorchState": "",
    "elastic.ElasticSampler": "",
    "HorovodInternalError": "another name of `LwccError`",
    "HostsUpdatedInterrupt": "never raised by a fixed set of ranks",
    "HorovodVersionMismatchError": "never raised: nothing is built for a version",
    "run": "also `np`, `env`, `timeout`; elastic, ssh and MPI arguments are refused by name",
    **dict.fromkeys(NO_MPI.split(), "False"),
    **dict.fromkeys(WITHOUT_MPI.split(), "True: works without MPI"),
    **dict.fromkeys(NOT_BUILT.split(), "0 or False"),
}
# what users of Horovod met -> the case or test in which it is not so; numbers are those of its public reports
FAULTS = {
    "broadcast_optimizer_state moves parameters of the ranks without state": (
        "case_a_resumed_adamw_is_equal_everywhere_and_no_parameter_moves"
    ),
    "groups ignore gradient_predivide_factor": ("case_small_buckets_groups_predivision_and_fused_steps_change_nothing"),
    "groups stall where a rank lacks a gradient": "case_a_layer_frozen_on_some_ranks",
    "join is wrong for Min, Max and Product, and Average divides by all": "case_every_type_has_its_neutral_elements",
    "counts of 32 bits (844, 373)": "test_huge.c",
    "zero_grad(set_to_none=...) is a TypeError (3405)": "case_the_class_and_its_state_are_the_users",
    "elastic retries errors of the program": "case_elastic_goes_back_to_the_last_commit",
    "averages of integers throw": "case_allreduce_averages_and_takes_extremes",
    "statistics of different SyncBatchNorm layers pair up (1077, 1384: GPU only)": (
        "case_sync_batch_norm_is_that_of_the_whole_batch"
    ),
    "a rank ends, the others go on for minutes (642, 3060)": ("test_the_first_failure_decides_code_and_report"),
    "a tensor that some ranks never ask for hangs silently (100, 429, 2640, 2107)": (
        "test_a_missing_rank_is_named_and_the_job_goes_on"
    ),
    "uneven data deadlocks (3980)": "case_uneven_epochs_train_as_one_process_would",
    "ranks outlive the launcher (2402)": "test_sigkill_of_the_launcher_leaves_no_process",
    "two optimizers, as of a GAN, clash (2716, 2559, 1679, 1549)": "case_a_gan_with_two_optimizers",
    "no bfloat16 on CPU (4047, 278)": "case_allreduce_sums_every_type_and_shape",
    "an idle job uses CPU (2804)": "test_idle_ranks_use_no_cpu",
    "mixed precision recipes stall or refuse (3160, 3181, 3350)": ("case_mixed_precision_recipes_train_and_skip_alike"),
    "process sets wait for one another (3324)": "test_sets.c",
    "memory grows with every step (1501, 602)": "case_memory_is_flat_for_unnamed_collectives",
    "a refused group leaves its names or numbers behind": "case_a_refused_group_leaves_nothing_behind",
    "a sparse allreduce hangs unless it is waited for in order (2961, 2965)": "case_a_sparse_handle_is_also_a_function",
    "an elastic sampler loses what was processed (3143)": "case_elastic_sampler_leaves_out_what_was_processed",
    "a fused bucket changes while it is in use (1282)": "test_negotiate.c",
}


@functools.cache
def texts() -> dict[str, str]:
    """Return the text of every test file but the other adapter's, by its path from tests/ on."""
    root = HERE.parent
    found = [p for p in sorted(root.rglob("*.[cp]*")) if p.suffix in (".c", ".py") and p.parent.name != "tf"]
    return {str(path.relative_to(root)): path.read_text() for path in found}


def home(test: str) -> str:
    """Return the file that defines a case or a test, or is one; "" if there is none."""
    for path, text in texts().items():
        if path.endswith(f"/{test}") or f" {test}(" in text:
            return path
    return ""


def uses() -> dict[str, str]:
    """Return for each attribute that a case or test uses of the module the first one that does."""
    found: dict[str, str] = {}
    for path in sorted(HERE.glob("*.py")):
        if path.name == Path(__file__).name:
            continue
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith(("case_", "test_")):
                continue
            text = ast.unparse(node)
            for name in re.findall(r"\bhvd\.(\w+)", text) + re.findall(r"\b(elastic\.\w+)", text):
                found.setdefault(name, f"`{path.name}`: {node.name}")
    return found


def page() -> str:
    """Return the text that the page has to have."""
    covered = uses()
    rows = [
        f"| `{name}` | {SAME if not note else 'differs'} | {note} | {covered.get(name, 'nothing')} |"
        for name, note in NAMES.items()
    ]
    return "\n".join(
        [
            "# Horovod's interface in lwcc_torch",
            "",
            "`import lwcc_torch as hvd`. Generated by `python tests/torch/test_horovod_table.py`; do not edit.",
            "All cases run on several numbers of real ranks.",
            "",
            "| name | status | what differs | covered by |",
            "|---|---|---|---|",
            *rows,
            "",
            "## What its users met",
            "",
            "| report | does not happen in |",
            "|---|---|",
            *(
                f"| {report} | `{home(test)}`{'' if test.endswith('.c') else ': ' + test} |"
                for report, test in FAULTS.items()
            ),
            "",
            "All collectives and `DistributedOptimizer` also take `algorithm=` (see `lwcc.use`).",
            "",
            "An argument error of one's own is a ValueError from the call; what ranks disagree about is a `Mismatch`",
            "on every rank (a RuntimeError, as all of `LwccError`), and the job goes on.",
            "",
        ]
    )


def test_every_name_is_there_and_covered_and_the_page_says_so() -> None:
    hvd = pytest.importorskip("lwcc_torch")
    pytest.importorskip("torch")
    for name in NAMES:
        value = hvd
        for part in name.split("."):
            value = getattr(value, part)
    assert [name for name in NAMES if name not in uses()] == []
    assert [test for test in FAULTS.values() if not home(test)] == []
    assert PAGE.read_text() == page(), "run python tests/torch/test_horovod_table.py"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
