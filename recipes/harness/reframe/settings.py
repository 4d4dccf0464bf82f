"""An example of ReFrame's settings: this machine, and a Slurm cluster whose accounting may be absent.

Change names and options to your site's; `reframe -C settings.py --show-config` shows what ReFrame made of it.
"""

APPTAINER = [{"type": "Apptainer"}]

site_configuration = {
    "systems": [
        {
            "name": "cluster",
            "descr": "Slurm; choose it with --system=cluster, or give its login nodes' names",
            "hostnames": ["login.*"],
            "partitions": [
                {
                    "name": "nodes",
                    # `slurm` where sacct answers; `squeue` everywhere.
                    "scheduler": "squeue",
                    "launcher": "srun",
                    # What sbatch must be told here: ["--partition=gpu", "--account=acceptance"]
                    "access": [],
                    "environs": ["builtin"],
                    "container_platforms": APPTAINER,
                    # Used with -S num_gpus_per_node=N.
                    "resources": [{"name": "gpu", "options": ["--gres=gpu:{num_gpus_per_node}"]}],
                    # ReFrame looks at the processors of this machine, not of the nodes.
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
