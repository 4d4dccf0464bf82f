"""README.txt of a submission: for whoever has the file and not yet this program."""

from __future__ import annotations

from hpcai500.results.submission.manifest import MANIFEST, NAMESPACE, SIGNATURE


def readme(system: str, organisation: str, version: str) -> bytes:
    """The text."""
    return f"""HPC AI500 submission
====================

System:        {system}
Organisation:  {organisation}
Written by:    hpcai500 {version}, `hpcai500 submit`

{MANIFEST} says what is claimed, and holds length and SHA-256 of every other file. It is the one file that is signed,
so that its signature vouches for all of them.

To check everything, down to the recomputation of each number from the events of the runs:

    hpcai500 verify SUBMISSION.zip

With standard tools alone:

    unzip SUBMISSION.zip -d submission && cd submission
    # each file is the one that the manifest names (prints nothing that is not OK)
    python3 -I -c 'import json, hashlib; [print(f["path"], "DIFFERS") for f in json.load(open("{MANIFEST}"))["files"]
      if hashlib.sha256(open(f["path"], "rb").read()).hexdigest() != f["sha256"]]'
    # who signed it: compare the fingerprint with the one that the submitter tells you
    ssh-keygen -Y check-novalidate -n {NAMESPACE} -s {SIGNATURE} < {MANIFEST}
    # or, with a file of keys that you trust (man ssh-keygen, ALLOWED SIGNERS)
    ssh-keygen -Y find-principals -s {SIGNATURE} -f ALLOWED_SIGNERS
    ssh-keygen -Y verify -n {NAMESPACE} -f ALLOWED_SIGNERS -I WHO -s {SIGNATURE} < {MANIFEST}

campaign/    the plan, its journal, and the record of every run that was begun, failed ones included
code/        the Python sources that ran
accounting/  what Slurm says of the jobs
logs/        logs that the submitter added

docs/submission-format.md of hpcai500 explains every field.
""".encode()
