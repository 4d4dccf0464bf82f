"""Input by NVIDIA's DALI: on a CPU around our own decoder, on a CUDA device with DALI's.

Nothing is imported here: DALI takes its time, and only a run that asks for it should need it.
"""
