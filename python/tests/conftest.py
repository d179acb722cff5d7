import numpy as np
import pytest


def mixture(n, dim, seed=0):
    """Rows around 20 centres."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, dim)) * 3
    return (centres[rng.integers(0, 20, n)] + rng.standard_normal((n, dim))).astype(np.float32)


@pytest.fixture(scope="session")
def x():
    x = mixture(3000, 24)
    x.flags.writeable = False
    return x


@pytest.fixture(scope="session")
def q():
    return mixture(3100, 24)[3000:]


@pytest.fixture(scope="session")
def index(x):
    import tagore_ann

    return tagore_ann.build(x, "nsg")


@pytest.fixture(scope="session")
def s3():
    """An S3 server on the loopback."""
    pytest.importorskip("moto")
    from cluster import S3

    server = S3()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of three nodes with a CPU each."""
    pytest.importorskip("ray")
    from cluster import start_cluster

    cluster = start_cluster()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def connected(cluster):
    """A connection to the cluster: builds share it, and the workers that it starts."""
    import ray

    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    yield cluster
    ray.shutdown()


def nearest(x, q, k):
    """The plain reference: rows and squared distances in f64."""
    x, q = x.astype(np.float64), q.astype(np.float64)
    distances = (q**2).sum(1)[:, None] - 2 * q @ x.T + (x**2).sum(1)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return ids, np.take_along_axis(distances, ids, axis=1)


def recall(found, truth):
    """The share of true ids that were found."""
    hits = [len(set(a.tolist()) & set(b.tolist())) for a, b in zip(found, truth, strict=True)]
    return sum(hits) / truth.size
