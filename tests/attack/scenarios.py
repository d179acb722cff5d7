"""Runs that write files, with what each reads: what the kills are tried on."""

from dataclasses import dataclass

DISK = ["--device", "cpu", "--knn", "8", "--cluster-size", "60", "--checkpoint", "0"]


@dataclass
class Scenario:
    name: str
    inputs: list  # names in the folder of data
    command: list
    # What reads several files that belong together, and writes `read`: it may refuse them, or find an old or a new set.
    reader: list = None
    resumes: bool = False
    weight: int = 1


def scenarios(ids, indexes, host_memory):
    """All runs; `ids` and `indexes` are names of formats, `host_memory` the least that a build out of core takes."""
    build = ["build", "-i", "base.fbin", "-o", "x.tagore"]
    cpu = ["--device", "cpu", "--knn", "8"]
    search = ["--base", "base.fbin", "--queries", "query.fbin"]
    found = [
        Scenario("build", ["base.fbin"], [*build, "--kind", "vamana", *cpu], weight=3),
        Scenario("build, pages", ["base.fbin"], [*build, "--kind", "nsg", *cpu, "--html", "x.html", "--report", "x.json"]),
        Scenario("build, no report", ["base.fbin"], [*build, "--kind", "cagra", "--degree", "8", *cpu, "--no-report"]),
        Scenario("build, emulated", ["tiny.fbin"], ["build", "-i", "tiny.fbin", "-o", "x.tagore", "--kind", "cagra", "--degree", "8", "--device", "emulated", "--knn", "8", "--no-report"]),
        Scenario("build of a graph", ["base.fbin", "graph"], [*build, "--kind", "nsg", "--device", "cpu", "--graph", "graph", "--no-report"]),
        Scenario("out of core", ["base.fbin"], [*build, "--kind", "vamana", *DISK], resumes=True, weight=12),
        Scenario("out of core, elsewhere", ["base.fbin"], [*build, "--kind", "nssg", *DISK, "--work-dir", "elsewhere"], resumes=True, weight=4),
        Scenario("out of core, lists on disk", ["base.fbin"], [*build, "--kind", "vamana", *DISK, "--host-memory", host_memory], resumes=True, weight=8),
        Scenario("knn", ["base.fbin"], ["knn", "-i", "base.fbin", "-o", "x", *cpu], reader=["build", "-i", "base.fbin", "-o", "read", "--kind", "nsg", "--device", "cpu", "--graph", "x", "--no-report"], weight=3),
        Scenario("groundtruth", ["base.fbin", "query.fbin"], ["groundtruth", *search, "-k", "5", "-o", "x"]),
        Scenario("search", ["base.fbin", "query.fbin", "index.tagore"], ["search", *search, "--index", "index.tagore", "-o", "x"]),
        Scenario("eval, plot", ["base.fbin", "query.fbin", "index.tagore", "truth.gt"], ["eval", *search, "--index", "index.tagore", "--groundtruth", "truth.gt", "--beams", "20,30", "--plot", "x.svg"]),
        Scenario("inspect, pages", ["base.fbin", "index.tagore"], ["inspect", "index.tagore", "--base", "base.fbin", "--html", "x.html", "--report", "x.json"]),
        Scenario("bench", ["base.fbin"], ["bench", "descent", "-i", "base.fbin", "--iterations", "1,1", "--knn", "8", "--repeat", "1", "--device", "cpu", "-o", "x.jsonl"]),
        Scenario("vectors", ["base.fbin"], ["convert", "base.fbin", "x.fvecs"]),
    ]
    for name in ["fbin", "npy"]:
        found.append(Scenario(f"synth {name}", [], ["synth", "-o", f"x.{name}", "--n", "500", "--dim", "8"]))
    for name in ids:
        reader = ["convert", f"x.{name}", "read", "--from", name, "--to", "ivecs"]
        found.append(Scenario(f"ids {name}", ["truth.gt"], ["convert", "truth.gt", f"x.{name}", "--to", name], reader=reader))
    for name in indexes:
        index = "cagra.tagore" if name == "npy" else "index.tagore"
        command = ["convert", index, f"x.{name}", "--to", name, "--base", "base.fbin"]
        reader = ["convert", f"x.{name}", "read", "--to", "tagore", "--from", name, "--base", "base.fbin"]
        found.append(Scenario(f"export {name}", ["base.fbin", index], command, reader=reader, weight=3))
    return found
