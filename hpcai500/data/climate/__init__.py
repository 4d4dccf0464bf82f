"""ExtremeWeather: a year of 16-channel climate images and their boxes in each HDF5 file.

`years` is the format, `index` the set, `loader` gives batches, `check` and `repack` are for who owns the files,
`synthetic` makes a set of `weather`.
"""
