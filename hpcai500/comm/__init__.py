"""Communication between ranks (layer 3).

A gradient goes from `reducer` (buckets, exchange threads) through `codecs` (on the core's `kernels`) and `topologies`
to a `communicator`, implemented by `torch_backend` and `horovod_backend` and made by `connect`. `liveness` detects lost
ranks, `timeline` records the cost of communication, `identity` refuses ranks with different code or data.
"""
