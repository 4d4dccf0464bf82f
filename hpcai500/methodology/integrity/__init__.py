"""What the events of a run say for or against each other: pure functions of a record's log (docs/verification.md)."""
