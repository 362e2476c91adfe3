"""`python -m bench`."""

from bench.command import bench

if __name__ == "__main__":
    bench(prog_name="python -m bench")
