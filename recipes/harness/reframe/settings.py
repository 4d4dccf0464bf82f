"""Example settings of ReFrame: this machine, and a Slurm cluster, with or without accounting.

Change names and options to those of your site; `reframe -C settings.py --show-config` shows the result.
"""

APPTAINER = [{"type": "Apptainer"}]

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "descr": "Slurm; choose it with --system=cluster, or set the names of its login nodes",
            "hostnames": ["login.*"],
            "partitions": [
                {
                    "name": "nodes",
                    # `slurm` if sacct works; `squeue` everywhere.
                    "scheduler": "squeue",
                    "launcher": "srun",
                    # Options of sbatch, for example ["--partition=gpu", "--account=acceptance"]
                    "access": [],
                    "environs": ["builtin"],
                    "container_platforms": APPTAINER,
                    # Used with -S num_gpus_per_node=N.
                    "resources": [{"name": "gpu", "options": ["--gres=gpu:{num_gpus_per_node}"]}],
                    # Otherwise ReFrame detects the processors of this machine, not of the nodes.
                    "features": ["remote"],
                }
            ],
        },
        {
            "name": "workstation",
            "descr": "The machine that ReFrame runs on; ranks by `hpcai500 --procs`",
            "hostnames": [".*"],
            "partitions": [
                {
                    "name": "local",
                    "scheduler": "local",
                    "launcher": "local",
                    "environs": ["builtin"],
                    "container_platforms": APPTAINER,
                }
            ],
        },
    ],
    "general": [{"remote_detect": False}],
}
