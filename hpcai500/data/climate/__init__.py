"""ExtremeWeather: a year of 16-channel climate images and their boxes in each HDF5 file: found, checked, made, read."""
