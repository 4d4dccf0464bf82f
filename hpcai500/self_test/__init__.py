"""The in-job half of `hpcai500 self-test`; `command` is the program of its processes (launch/self_test.py).

Kernels are compared with independent libraries (Pillow, h5py, NumPy), or with their definition.
"""
