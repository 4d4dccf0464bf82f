"""What becomes of records: scores, and what people and harnesses are shown of them."""
