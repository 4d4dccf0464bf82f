"""Values of whole years: read, digested, and summed up channel by channel."""
