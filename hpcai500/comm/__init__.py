"""Communication between ranks (layer 3).

A gradient goes from `reducer` (buckets, the exchange thread) through `codecs` (on the core's `kernels`) and
`topologies` to a `communicator`, of which `torch_backend` and `horovod_backend` are the two kinds; `connect` makes
it. `liveness` notices who is lost, `timeline` records what communication costs, `identity` refuses ranks with other
code or data.
"""
