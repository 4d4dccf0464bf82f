"""ExtremeWeather: a year of 16-channel climate images and their boxes in each HDF5 file.

`years` is the format, `index` the set, `loader` the batches. `check` and `repack` are for the owner of the files, and
`synthetic` writes a set of synthetic `weather`.
"""
