"""One file for each way to read a single matrix: its options and the plan that it builds."""
