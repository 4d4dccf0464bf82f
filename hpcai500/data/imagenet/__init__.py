"""ImageNet: JPEG files in `train/<class>/` and `val/<class>/`: found, checked, made, and read as batches."""
