"""Checks of files that the command has written."""

import struct


EMPTY = 0xFFFFFFFF


def fault_of_neighbors(content, rows=None, may_be_short=False):
    """What is wrong with lists of ids and distances in the layout of a ground truth; none if nothing is.

    Lists that may be short end with empty slots.
    """
    if len(content) < 8:
        return f"{len(content)} bytes of neighbours"
    count, k = struct.unpack_from("<2I", content)
    if len(content) != 8 + 8 * count * k:
        return f"{len(content)} bytes of neighbours for {count} x {k}"
    ids = struct.unpack_from(f"<{count * k}I", content, 8)
    distances = struct.unpack_from(f"<{count * k}f", content, 8 + 4 * count * k)
    for query in range(count):
        found, far = ids[query * k : query * k + k], distances[query * k : query * k + k]
        if may_be_short:
            full = sum(one != EMPTY for one in found)
            if any(distance != float("inf") for distance in far[full:]):
                return f"query {query} has distances {far} in {full} slots"
            found, far = found[:full], far[:full]
        if len(set(found)) != len(found):
            return f"query {query} has an id twice: {found}"
        if rows is not None and max(found, default=0) >= rows:
            return f"query {query} has id {max(found)} of {rows}"
        if any(distance != distance or abs(distance) == float("inf") for distance in far):
            return f"query {query} has distances {far}"
        if any(a > b for a, b in zip(far, far[1:])):
            return f"query {query} has distances out of order: {far}"
    return None
