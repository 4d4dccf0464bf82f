"""ImageNet: JPEG files in `train/<class>/` and `val/<class>/`.

`index` lists them, `loader` (or `dali`) gives batches, `seek_index` makes crops cheaper to decode, `check` reads
all files, `synthetic` writes a set.
"""
