#!/usr/bin/env python3
"""What including heed costs: compiles each file next to this one several times, in turns, and compares processor times.

bench/compile_time/measure.py [--compiler g++ clang++] [--eigen /usr/include/eigen3]"""
import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FILES = ["eigen_only.cpp", "eigen_formula.cpp", "heed_attention.cpp", "heed_everything.cpp", "heed_elsewhere.cpp"]


def compile_seconds(command):
    """Processor time of one compilation, which other programs on the machine stretch less than they stretch the clock's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"measure.py: {' '.join(map(str, command))} failed:\n{run.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compiler", nargs="+", default=["g++", "clang++"], help="those that are missing are left out (default: %(default)s)")
    parser.add_argument("--eigen", default="/usr/include/eigen3", help="where Eigen is (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    if not os.path.isdir(os.path.join(arguments.eigen, "Eigen")):
        sys.exit(f"measure.py: there is no Eigen in {arguments.eigen}; say where it is with --eigen")
    compilers = [c for c in arguments.compiler if shutil.which(c)]
    if not compilers or arguments.runs < 1:
        sys.exit(f"measure.py: needs a compiler ({', '.join(arguments.compiler)}) and one run or more")

    os.environ["CCACHE_DISABLE"] = "1"  # a cache would be measured instead
    for compiler in compilers:
        times = {file: [] for file in FILES}
        for _ in range(arguments.runs):
            for file in FILES:
                command = [compiler, "-std=c++17", "-O2", f"-I{HERE.parents[1]}/include", "-isystem", arguments.eigen, "-c", HERE / file, "-o",
                           os.devnull]
                times[file].append(compile_seconds(command))
        base, formula = (statistics.median(times[file]) for file in FILES[:2])
        print(f"\n{compiler} -O2, median of {arguments.runs}, processor time")
        print(f"{'file':22} {'seconds':>8} {'to Eigen only':>14} {'to the formula in Eigen':>24}")
        for file in FILES:
            seconds = statistics.median(times[file])
            print(f"{file:22} {seconds:8.2f} {seconds / base:13.2f}x {seconds / formula:23.2f}x")


if __name__ == "__main__":
    main()
