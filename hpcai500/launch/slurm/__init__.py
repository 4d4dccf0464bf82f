"""Slurm: what differs between sites (`site`), batch scripts (`script`), and what the queue says of jobs (`queue`)."""
