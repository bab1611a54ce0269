"""The shortest program: every rank brings an array, every rank gets the sum.

lwccrun -np 2 examples/numpy_allreduce.py
"""

import argparse
import sys

import numpy as np

import lwcc

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--count", type=int, default=1_000_000, help="elements (default %(default)s)")
count = parser.parse_args().count

lwcc.init()
mine = np.full(count, lwcc.rank() + 1, np.float32)
total = lwcc.allreduce(mine, op=lwcc.Sum, name="total")

target = lwcc.size() * (lwcc.size() + 1) / 2
right = bool((total == target).all())
if lwcc.rank() == 0:
    print(
        f"{count} elements over {lwcc.size()} ranks; target: {target:g} everywhere: {'reached' if right else 'MISSED'}"
    )
sys.exit(0 if right else 1)
