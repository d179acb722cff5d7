"""Damage to the bytes of a file, drawn from a generator."""

import json
import struct
import zlib

HEADER = 128  # bytes in which half of all damage lies

EXTREMES = [0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0xFFFF, 0x10000, 2**24, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1]
LONG_EXTREMES = EXTREMES + [2**32, 2**33, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 16, 2**64 - 1]
FLOATS = [float("nan"), float("inf"), float("-inf"), 1e20, -1e20, 3.4e38, 1e-23, 1e-45, -0.0]


def place(draw, size):
    """A byte of the file; half of them in its header, and seldom the end."""
    if draw.random() < 0.5:
        size = min(size, HEADER)
    return draw.randrange(size)


def flip(data, draw):
    for _ in range(draw.choice([1, 1, 2, 8])):
        at = place(draw, len(data))
        data[at] ^= 1 << draw.randrange(8)
    return data


def noise(data, draw):
    at = place(draw, len(data))
    length = min(draw.randrange(1, 17), len(data) - at)
    data[at : at + length] = draw.randbytes(length)
    return data


def cut(data, draw):
    return data[: draw.choice([0, 1, 4, 8, 16, len(data) - 1, len(data) - 4, draw.randrange(len(data)), place(draw, len(data))])]


def extend(data, draw):
    length = draw.choice([1, 3, 4, 8, 100, 4096, draw.randrange(1, 5000)])
    return data + (bytes(length) if draw.random() < 0.5 else draw.randbytes(length))


def field(data, draw):
    """Sets a number to an extreme, or near to what it is."""
    width, extremes = draw.choice([(1, [0, 255, 128]), (4, EXTREMES), (4, EXTREMES), (8, LONG_EXTREMES)])
    if len(data) < width:
        return data
    at = min(place(draw, len(data)), len(data) - width)
    at -= at % min(width, 4) if draw.random() < 0.8 else 0
    value = int.from_bytes(data[at : at + width], "little")
    near = value + draw.choice([-1, 1, value, -(value // 2), value << 8])
    value = near if draw.random() < 0.3 else draw.choice(extremes)
    data[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    return data


def real(data, draw):
    """Sets a number of four bytes to an extreme one."""
    at = draw.randrange(len(data)) // 4 * 4
    if at + 4 <= len(data):
        data[at : at + 4] = struct.pack("<f", draw.choice(FLOATS))
    return data


def block(data, draw):
    length = min(draw.choice([4, 8, 32, 64, 512, 4096]), len(data))
    at = draw.randrange(len(data) - length + 1)
    return at, at + length


def swap(data, draw):
    begin, end = block(data, draw)
    other = draw.randrange(len(data) - (end - begin) + 1)
    data[begin:end], data[other : other + end - begin] = data[other : other + end - begin], data[begin:end]
    return data


def drop(data, draw):
    begin, end = block(data, draw)
    return data[:begin] + data[end:]


def repeat(data, draw):
    begin, end = block(data, draw)
    return data[:end] + data[begin:end] * draw.choice([1, 1, 100]) + data[end:]


def fill(data, draw):
    begin, end = block(data, draw)
    data[begin:end] = bytes([draw.choice([0, 255, 127])]) * (end - begin)
    return data


def text(data, draw):
    """Changes a number or a word of JSON or of an npy header, where the file has any."""
    digits = [at for at, byte in enumerate(data[:2048]) if byte in b"0123456789"]
    if not digits:
        return noise(data, draw)
    at = draw.choice(digits)
    new = draw.choice([b"", b"-1", b"0", b"18446744073709551615", b"1e999", b"\x1b[31m", b"\n", b"9" * 2000, b"\xff"])
    return data[:at] + new + data[at + 1 :]


def stretch(data, draw):
    """Sets a number to a large count, and puts as many items behind it."""
    count, width = draw.choice([2_000, 70_000, 400_000]), draw.choice([1, 4, 4, 8])
    at = place(draw, len(data)) // 4 * 4
    items = draw.choice([bytes(width), b"\xff" * width, b"a" * width, None])
    if items:
        items *= count
    else:
        items = b"".join(item.to_bytes(width, "little") for item in range(draw.randrange(1, 120))) if width > 1 else draw.randbytes(64)
        items = (items * (count * width // len(items) + 1))[: count * width]
    return data[:at] + count.to_bytes(draw.choice([4, 4, 8]), "little") + items + data[at + 4 :]


KINDS = [flip, flip, noise, cut, cut, extend, field, field, field, field, real, swap, drop, repeat, fill, text]


def mutate(content, draw, other=b""):
    """The damaged content; now and then that of an `other` file."""
    if other and draw.random() < 0.02:
        return other
    data = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        if not data:
            break
        # Large files take their time: they are few.
        damage = stretch if draw.random() < 0.02 else draw.choice(KINDS)
        data = bytearray(damage(data, draw))
    return bytes(data)


def repair(content):
    """Makes checksums right again where the layout is known: of the native index, so that damage gets behind them."""
    if content[:8] == b"TAGOREIX" and len(content) >= 4096:
        return repair_index(bytearray(content))
    return content


def repair_index(data, block_size=1 << 20):
    # Version 1 has five sections; layers and repeated rows came with version 2.
    words = 10 if data[8:12] == b"\1\0\0\0" else 14
    sections = struct.unpack_from(f"<{words}Q", data, 64)
    checksums, at = [], 0
    for offset, length in zip(sections[:-2:2], sections[1:-2:2]):
        for begin in range(offset, min(offset + length, len(data)), block_size):
            checksums.append(zlib.crc32(data[begin : min(begin + block_size, offset + length)]))
    for at, checksum in enumerate(checksums):
        end = sections[-2] + 4 * at + 4
        if end <= len(data):
            struct.pack_into("<I", data, end - 4, checksum)
    struct.pack_into("<I", data, 4092, zlib.crc32(data[:4092]))
    return bytes(data)


def unsealed(content):
    """The head and the JSON of a sealed record (docs/formats.md), and the bytes after it; none if there is no record."""
    line, _, rest = content.partition(b"\n")
    try:
        head = json.loads(line + b"0}")
        length = head["bytes"]
    except (ValueError, KeyError, TypeError):
        return None
    return head, rest[:length], rest[length + 2 :]


def sealed(head, text):
    """A record with another JSON, and a right checksum."""
    head = head | {"bytes": len(text), "crc": zlib.crc32(text), "content": 0}
    return json.dumps(head, separators=(",", ":")).encode()[:-2] + b"\n" + text + b"}\n"


def numbers_of(value, found=None, path=()):
    """Paths of all numbers in JSON."""
    found = [] if found is None else found
    if isinstance(value, dict):
        for key in value:
            numbers_of(value[key], found, (*path, key))
    elif isinstance(value, list):
        for key, item in enumerate(value):
            numbers_of(item, found, (*path, key))
    elif isinstance(value, (int, float)):
        found.append(path)
    return found


def edit_number(text, draw):
    """Sets one number of a JSON text to another."""
    value = json.loads(text)
    paths = numbers_of(value)
    if not paths:
        return text
    *path, last = draw.choice(paths)
    holder = value
    for key in path:
        holder = holder[key]
    old = holder[last]
    holder[last] = draw.choice([0, 1, 2, old + 1, max(old - 1, 0), old * 2, 2**32 - 1, 2**62, 2**64 - 1])
    return json.dumps(value).encode()
