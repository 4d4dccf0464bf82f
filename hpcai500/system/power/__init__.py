"""Power of this node: who can tell it (NVML, RAPL, IPMI, a meter's file), and a sampler that asks (docs/power.md)."""
