"""What an MPI's launcher takes for ssh under `--net`: ``netagent.py '{"ADDRESS": PID}' [-flags] ADDRESS COMMAND...``

Runs the command in the namespaces of the node with that address. Stands alone: it is run as a file.
"""

import json
import os
import sys

if __name__ == "__main__":
    places = json.loads(sys.argv[1])
    rest = sys.argv[2:]
    while rest and rest[0].startswith("-"):
        rest.pop(0)
    if not rest or rest[0] not in places:
        sys.exit(f"lwccrun: no node {rest[:1]} among {sorted(places)}")
    command = ["nsenter", "-t", str(places[rest[0]]), "-n", "-u", "--", "sh", "-c", " ".join(rest[1:])]
    os.execvp(command[0], command)
