"""What communication costs (V2.0 section 7.3, Table 12): recorded bucket by bucket, told as tables and traces."""
