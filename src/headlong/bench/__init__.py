"""How claims are measured: contests of engines and rivals, answers compared with float64, clocks for CPU and GPU."""
