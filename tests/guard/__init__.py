"""The guard alone, without servers; with servers: `faults.test_memory` and `faults.test_clocks`."""
