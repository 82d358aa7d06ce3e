"""One broker beside another, workload by workload."""
