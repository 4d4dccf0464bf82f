"""What `data check ewa` finds and how it is shown."""
