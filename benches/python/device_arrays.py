"""Arrays on a GPU by Python against the library: build, search of many queries, search of one.

    device_arrays.py FOLDER [--n 1000000] [--dim 128] [--queries 10000] [--kind cagra] [--no-torch]

Needs tagore_ann, NumPy and a CUDA device; tensors of torch if it is there, else an array made by
ctypes on libcuda. FOLDER gets the data, or holds base.fbin and query.fbin. Prints a line per
measurement, then a line of JSON. Ends with 1 if an answer differs from that of host memory.
"""

import argparse
import contextlib
import ctypes
import json
import os
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import tagore_ann

PIECE = 1 << 16
ONE_BY_ONE = 2000
# The wait for a GPU differs from process to process by more than the calls do.
ROUNDS = 5


class CudaArray:
    """Rows of float32 in memory of a CUDA device, with `__cuda_array_interface__` alone."""

    def __init__(self, rows):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, self.address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        n, dim = rows.shape
        self.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(n * dim * 4))
        for first in range(0, n, PIECE):
            piece = np.ascontiguousarray(rows[first : first + PIECE], dtype=np.float32)
            to = ctypes.c_uint64(self.address.value + first * dim * 4)
            self.call("cuMemcpyHtoD_v2", to, ctypes.c_void_p(piece.ctypes.data), ctypes.c_size_t(piece.nbytes))
        data = (self.address.value, True)
        self.__cuda_array_interface__ = {
            "shape": (n, dim), "typestr": "<f4", "data": data, "strides": None, "version": 3,
        }  # fmt: skip

    def call(self, name, *arguments):
        """Calls the driver."""
        status = getattr(self.cuda, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: error {status}")

    def __del__(self):
        self.cuda.cuMemFree_v2(self.address)


def on_device(rows, torch):
    """The rows on cuda:0, in pieces: host memory holds few of them."""
    if torch is None:
        return CudaArray(rows)
    tensor = torch.empty(rows.shape, dtype=torch.float32, device="cuda:0")
    for first in range(0, len(rows), PIECE):
        tensor[first : first + PIECE] = torch.from_numpy(np.array(rows[first : first + PIECE], np.float32))
    torch.cuda.synchronize()
    return tensor


class Peak:
    """The most bytes of anonymous memory of this process beyond those at the start."""

    def __enter__(self):
        self.first = self.most = self.now()
        self.ended = False
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def now(self):
        """The bytes now."""
        with open("/proc/self/statm") as file:
            _, resident, shared = map(int, file.read().split()[:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def watch(self):
        """Looks until the end."""
        while not self.ended:
            self.most = max(self.most, self.now())
            time.sleep(0.002)

    def __exit__(self, *_):
        self.ended = True
        self.thread.join()
        self.bytes = max(self.most, self.now()) - self.first


def seconds(work, count):
    """The times of some calls, and the last result."""
    times, result = [], None
    for _ in range(count):
        began = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - began)
    return times, result


def seconds_of(work, values):
    """The time of a call for each of some values, after one for each."""
    for value in values:
        work(value)
    return [seconds(lambda value=value: work(value), 1)[0][0] for value in values]


def one_by_one(work, values):
    """Microseconds of a call for one of some values: the median of rounds over them."""
    rounds = [statistics.median(seconds_of(work, values)) for _ in range(ROUNDS)]
    return 1e6 * statistics.median(rounds)


def tagore(*arguments):
    """Runs the command; returns its lines of JSON."""
    command = [sys.executable, "-m", "tagore_ann", "--json", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main():
    """Measures, and compares the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--kind", default="cagra")
    parser.add_argument("--beam", type=int, default=64)
    parser.add_argument("--no-torch", action="store_true")
    given = parser.parse_args()
    torch = None
    if not given.no_torch:
        with contextlib.suppress(ImportError):
            import torch

    def at(name):
        return os.path.join(given.folder, name)

    os.makedirs(given.folder, exist_ok=True)
    for name, more in [("base.fbin", []), ("query.fbin", ["--queries", given.queries])]:
        if not os.path.exists(at(name)):
            tagore("synth", "--n", given.n, "--dim", given.dim, "-o", at(name), *more)
    base, queries = tagore_ann.read(at("base.fbin")), tagore_ann.read(at("query.fbin"))
    (n, dim), found, wrong = base.shape, {}, []

    def say(name, value, unit=""):
        found[name] = value
        print(f"{name:<44} {value:>14,.6g} {unit}", flush=True)

    there, asked = on_device(base, torch), on_device(queries, torch)
    print(f"{n} x {dim} float32 on the device, as {type(there).__module__}.{type(there).__name__}")
    interface = there.__cuda_array_interface__
    print(f"pointer {interface['data'][0]:#x}")

    # Builds: the second of a process has its kernels.
    def build(x):
        return tagore_ann.build(x, given.kind, device="cuda:0", verify=0)

    build(there)
    with Peak() as peak:
        times, index = seconds(lambda: build(there), 3)
    say("vectors, bytes", n * dim * 4)
    say("graph, bytes", index.graph.nbytes)
    say("host memory of builds from the device, bytes", peak.bytes)
    say("second build from the device, s", times[0])
    say("best build from the device, s", min(times))
    host = np.array(base, np.float32)
    times, expected = seconds(lambda: build(host), 3)
    say("second build from host memory, s", times[0])
    say("best build from host memory, s", min(times))
    if not np.array_equal(index.graph, expected.graph):
        wrong.append("the graphs differ")
    index.save(at("x.tagore"))

    # Searches of many queries, and of one.
    def search(q, output="device"):
        return index.search(q, k=10, beam=given.beam, device="cuda:0", output=output)

    # A GPU at rest takes some calls to reach its clock.
    seconds(lambda: search(asked), 200)
    times, left = seconds(lambda: search(asked), 300)
    say("search on the device, queries/s", len(queries) / statistics.median(times))
    for result, number in [(left.ids, 0), (left.distances, 1)]:
        if not np.array_equal(result.numpy(), search(np.array(queries), "numpy")[number]):
            wrong.append("answers differ")
    if (
        torch is not None
        and torch.from_dlpack(left.distances).data_ptr() != left.distances.__cuda_array_interface__["data"][0]
    ):
        wrong.append("DLPack copied")
    # One at a time, in turn, as the command measures it.
    some = range(min(len(queries), ONE_BY_ONE))
    rows = np.array(queries[: len(some)], np.float32)
    ones = [asked[i : i + 1] if torch is not None else on_device(rows[i : i + 1], None) for i in some]
    say("one query on the device, us", one_by_one(search, ones))
    say("one query in host memory, us", one_by_one(lambda row: search(row, "numpy"), rows))

    # The library: the command's own measurements.
    lines = tagore("bench", "prune", "-i", at("base.fbin"), "--kinds", given.kind, "--device", "cuda:0")
    print(json.dumps(lines))
    tagore("groundtruth", "--base", at("base.fbin"), "--queries", at("query.fbin"), "-o", at("truth.bin"), "-k", 10)

    def bench_search(batch):
        [line] = tagore(
            "bench", "search", "-i", at("base.fbin"), "--queries", at("query.fbin"), "--groundtruth", at("truth.bin"),
            "--index", at("x.tagore"), "--beams", given.beam, "--batches", batch, "--device", "cuda:0",
        )  # fmt: skip
        return line

    line = bench_search(len(queries))
    say("bench search on the device, queries/s", line["device_qps"])
    say("bench search by the clock, queries/s", line["qps"])
    lines = [bench_search(1) for _ in range(ROUNDS)]
    say("one query by the library, us", statistics.median(1e6 / line["qps"] for line in lines))
    print(json.dumps(found | {"wrong": wrong}))
    for problem in wrong:
        print(f"device_arrays.py: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
