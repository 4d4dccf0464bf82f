"""The in-job half of `hpcai500 self-test`: each module ending in `command` is one process of it (launch/self_test.py).

Kernels are held against peers that share no code with them (Pillow, h5py, NumPy), or against their definition.
"""
