"""The ceilings of a machine: products, convolutions, copies, all-reduces and input, each as fast as it goes here."""
