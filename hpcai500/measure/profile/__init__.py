"""Where the time of training steps goes (V2.0 section 7.3.2): kernels by class, layouts, device, network."""
