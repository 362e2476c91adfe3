"""What masters, networks, clocks and stopped processes can do to a lock; each test names its row of the matrix."""
