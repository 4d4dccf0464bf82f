"""Communication between ranks (layer 3): communicators, the gradient reducer, topologies, compression."""
