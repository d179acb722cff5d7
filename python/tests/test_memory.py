"""Too little memory is a MemoryError, whatever the call; threads that cannot start are an error."""

import os
import subprocess
import sys

import pytest

LIMITS = 50

# A child for each limit of its address space: from nothing to more than the work takes.
PROGRAM = """
import os, resource, signal, sys
import numpy as np
import tagore_ann

x = np.random.default_rng(0).standard_normal((3000, 32), dtype=np.float32)
q, folder, limits = x[:500].copy(), sys.argv[1], int(sys.argv[2])

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

def work(number):
    kind, metric = ("nsg", "cagra", "vamana", "nssg")[number % 4], ("l2", "cosine", "ip")[number % 3]
    tagore_ann.exact(x, q, k=50, metric=metric, device="cpu")
    index = tagore_ann.build(x, kind, metric, knn=48, device="cpu", verify=0)
    index.save(f"{folder}/{number}.tagore")
    opened = tagore_ann.Index.open(f"{folder}/{number}.tagore", base=x)
    opened.search(q, k=50, beam=100)
    opened.search(q, k=50, beam=100, vectors="int8")
    opened.search(q, k=5, filter=np.arange(1500))

def child(number, more, send):
    signal.alarm(120)
    before = status("VmSize")
    if more:
        resource.setrlimit(resource.RLIMIT_AS, (before + more, before + more))
    try:
        work(number)
        code = 0
    except MemoryError:
        code = 1
    except BaseException as error:
        print(f"limit {number}, {more} bytes: {error!r}", file=sys.stderr)
        code = 2
    os.write(send, str(status("VmPeak") - before).encode())
    os._exit(code)

def run(number, more):
    receive, send = os.pipe()
    process = os.fork()
    if process == 0:
        child(number, more, send)
    os.close(send)
    taken = os.read(receive, 100)
    os.close(receive)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code < 0:
        print(f"limit {number}, {more} bytes: killed by signal {-code}", file=sys.stderr)
    return code, int(taken or 0)

code, most = run(0, 0)
assert code == 0
codes = [run(number, most * number // (limits - 10) + 4096)[0] for number in range(limits)]
print(codes.count(1), codes.count(0), len(codes) - codes.count(0) - codes.count(1))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
def test_too_little_memory_is_a_memory_error(tmp_path):
    run = [sys.executable, "-c", PROGRAM, str(tmp_path), str(LIMITS)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    refused, finished, faults = map(int, done.stdout.split())
    print(f"{LIMITS} limits of memory: {refused} refused, {finished} done")
    assert faults == 0, done.stderr
    # Both ends are met: else the limits say nothing.
    assert refused > 0 and finished > 0


RETRY = """
import resource
import numpy as np
import tagore_ann

x = np.random.default_rng(0).standard_normal((3000, 16), dtype=np.float32)
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 20), resource.RLIM_INFINITY))
try:
    tagore_ann.knn_graph(x, 8)
    raise SystemExit("found room for threads")
except MemoryError:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(tagore_ann.knn_graph(x, 8)[0].shape)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space")
@pytest.mark.parametrize("variables", [{}, {"RUST_MIN_STACK": "1"}, {"RAYON_NUM_THREADS": "5000"}])
def test_a_call_without_threads_fails_and_the_next_one_tries_again(variables):
    run = subprocess.run([sys.executable, "-c", RETRY], env=os.environ | variables, capture_output=True, text=True)
    assert run.stdout == "(3000, 8)\n", run.stderr
