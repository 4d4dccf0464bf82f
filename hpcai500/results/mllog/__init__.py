"""Records in the log format of MLPerf, for tools that read such logs."""
