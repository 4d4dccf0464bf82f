"""What is measured inside a job: operations, time, the machine it ran on."""
