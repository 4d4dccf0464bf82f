"""Measurements inside a job: operations, time, and the machine that it runs on."""
