"""The benchmarks, one package each."""
