"""The examples of all docstrings, and the Python of the documents: doctests.py [DOCUMENT ..]

The blocks of a document that begin with ```python run one after another, in a folder of their own.
"""

import doctest
import importlib
import os
import pkgutil
import sys
import tempfile
from pathlib import Path

import tagore_ann

failed = attempted = 0
names = [module.name for module in pkgutil.iter_modules(tagore_ann.__path__)]
for name in [
    "tagore_ann",
    *(f"tagore_ann.{name}" for name in names if name not in ("__main__", "_tagore", "cuvs_bench")),
]:
    result = doctest.testmod(importlib.import_module(name))
    failed, attempted = failed + result.failed, attempted + result.attempted
print(f"{attempted} examples of docstrings, {failed} failed")

here = Path.cwd()
for document in sys.argv[1:]:
    blocks = [block.split("\n```")[0] for block in (here / document).read_text().split("```python\n")[1:]]
    names = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in blocks:
            exec(compile(block, document, "exec"), names)
        os.chdir(here)
    print(f"{document}: {len(blocks)} blocks of Python run")
sys.exit(failed > 0)
