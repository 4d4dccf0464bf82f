"""Slurm: what differs between sites (`site`), batch scripts (`script`), and the state of jobs (`queue`)."""
