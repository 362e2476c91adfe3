"""The faults of masters, networks, clocks and stopped processes; each test names its row of the matrix."""
