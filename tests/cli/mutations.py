# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a file, by a generator of random numbers: any bytes, and what formats of their own go through."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sqlite3
import struct
import zipfile

import onnx

#: What no reader expects where another value stands.
_VALUES = (
    *(None, True, -1, 0, 1, 0.5, 1e308, -1e308, 5e-324, 2**31, 2**63, 10**400, math.nan, math.inf, -math.inf),
    *("", "a", "\ud800", "\x1b[2J\x00", "a" * 10_000, "1e999", "@digits@", "@deep@", [], {}, [[]], [None], [1e308] * 3),
)

#: Written in place of what `json.dumps` cannot write.
_WRITTEN = {'"@digits@"': "7" * 5000, '"@deep@"': "[" * 5000 + "]" * 5000}


def damage(content, random):
    """Change, remove or insert bytes."""
    data = bytearray(content)
    how, place = random.randrange(5), random.randrange(len(data) or 1)
    if how == 0:
        for _ in range(random.randint(1, 8)):
            data[random.randrange(len(data))] = random.randrange(256)
    elif how == 1:
        del data[place:]
    elif how == 2:
        data[place:place] = random.randbytes(random.randint(1, 16))
    elif how == 3:
        del data[place : place + random.randint(1, 64)]
    else:
        data[place:place] = data[place : place + random.randint(1, 200)]
    return bytes(data)


def change_json(content, random):
    """Replace or remove a value somewhere in a document, or rename it."""
    document = json.loads(content)
    for _ in range(random.randint(1, 2)):
        document = _changed(document, random)
    text = json.dumps(document)
    for mark, written in _WRITTEN.items():
        text = text.replace(mark, written)
    return text.encode()


def _changed(document, random):
    way = _way(document, random)
    value = random.choice(_VALUES)
    if not way:
        return value
    *before, last = way
    parent = document
    for key in before:
        parent = parent[key]
    how = random.randrange(6)
    if how == 0:
        del parent[last]
    elif how == 1 and isinstance(parent, dict):
        parent[random.choice(("", "\ud800", "7" * 5000, "new", "\x1b[2J"))] = parent.pop(last)
    elif how == 2 and isinstance(parent, list):
        parent.insert(random.randrange(len(parent) + 1), parent[last])
    elif how == 3 and isinstance(parent[last], int | float):
        parent[last] = parent[last] * random.choice((-1, 0, 1e300, 1e-300, 10**20)) if parent[last] else value
    else:
        parent[last] = value
    return document


def _way(document, random):
    """Return the keys to a place, which lies as often near the top as deep inside."""
    way = []
    while isinstance(document, dict | list) and document and (not way or random.random() < 0.8):
        key = random.choice(list(document)) if isinstance(document, dict) else random.randrange(len(document))
        way.append(key)
        document = document[key]
    return way


def change_text(content, random):
    """Replace a number or a word of a text."""
    found = random.choice(list(re.finditer(rb"[\w.+-]+", content)))
    words = (b"", b"nan", b"inf", b"-1", b"1e308", b"1e999", b"7" * 5000, b"\xff", b"\x00", b"[" * 2000, b"#")
    new = random.choice(words)
    return content[: found.start()] + new + content[found.end() :]


def change_archive(content, random):
    """Change a member of an archive, or remove it."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = random.choice([name for name in members if name.endswith(".json")] + list(members)[:1])
    if random.random() < 0.1:
        del members[name]
    else:
        members[name] = change_json(members[name], random)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return file.getvalue()


def change_safetensors(content, random):
    """Change the header of a file of tensors, or the document among its metadata."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header["__metadata__"]
    if random.random() < 0.7:
        key = random.choice(list(metadata))
        metadata[key] = change_json(metadata[key], random).decode()
        text = json.dumps(header).encode()
    else:
        text = change_json(json.dumps(header), random)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def change_numpy(content, random):
    """Damage the header of an array."""
    return damage(content[:128], random) + content[128:]


def change_sqlite(content, random):
    """Put a value that no column expects into a row, or damage a page of the tables."""
    if random.random() < 0.5:
        data = bytearray(content)
        for _ in range(random.randint(1, 40)):
            data[random.randrange(100, len(data))] = random.randrange(256)
        return bytes(data)
    connection = sqlite3.connect(":memory:")
    with contextlib.closing(connection):
        # A database in memory has no write-ahead log.
        connection.deserialize(content[:18] + b"\1\1" + content[20:])
        connection.execute("PRAGMA ignore_check_constraints=ON")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        table = random.choice(tables)
        columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
        value = random.choice(
            ("NULL", "-1", "0", "1e308", "9e999", "'a'", "x'ff'", "CAST(x'ff80' AS TEXT)", "'['", "'{}'", "'[1e999]'",
             "'NaN'", "9223372036854775807", f"'{'[' * 3000}'", "''")
        )  # fmt: skip
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f'UPDATE OR IGNORE "{table}" SET "{random.choice(columns)}" = {value}')
        connection.commit()
        return connection.serialize()


def change_onnx(content, random):
    """Change a node, an attribute, a size or a name of a network."""
    model = onnx.ModelProto.FromString(content)
    for _ in range(random.randint(1, 2)):
        random.choice(_ONNX)(model.graph, random)
    return model.SerializeToString()


def _attribute(graph, random):
    node = random.choice([node for node in graph.node if node.attribute] or [graph.node.add()])
    if not node.attribute:
        return
    item = random.choice(node.attribute)
    how = random.randrange(5)
    if how == 0:
        item.type = random.choice(list(onnx.AttributeProto.AttributeType.values()))
    elif how == 1:
        item.name = random.choice(("", "pads", "axis", "value", "\x00", "kernel_shape"))
    elif how == 2 and item.ints:
        item.ints[random.randrange(len(item.ints))] = random.choice((-1, 0, 2**31, 2**62, -(2**63)))
    elif how == 3:
        item.f, item.i = random.choice((math.nan, math.inf, -math.inf, 1e38)), random.choice((-1, 0, 2**62))
    else:
        del item.ints[:]


def _node(graph, random):
    node = random.choice(graph.node)
    how = random.randrange(6)
    if how == 0:
        node.op_type = random.choice(("", "Conv", "Clip", "Reshape", "STFT", "Loop", "LSTM", "Concat", "\x1b[2J"))
    elif how == 1 and node.input:
        node.input[random.randrange(len(node.input))] = random.choice(("", "nothing", graph.node[-1].output[0]))
    elif how == 2:
        node.domain = random.choice(("com.microsoft", "ai.onnx.ml", "nobody", "\x00"))
    elif how == 3:
        del node.output[:]
    elif how == 4 and node.input:
        del node.input[random.randrange(len(node.input))]
    else:
        node.name = "\x1b[2J\n"


def _size(graph, random):
    size = random.choice((-1, 0, 1, 2, 2**31, 2**62))
    if random.random() < 0.5 and graph.initializer:
        tensor = random.choice(graph.initializer)
        if tensor.dims:
            tensor.dims[random.randrange(len(tensor.dims))] = size
        return
    item = random.choice([*graph.input, *graph.output, *graph.value_info])
    dims = item.type.tensor_type.shape.dim
    if dims:
        dims[random.randrange(len(dims))].dim_value = size


def _weights(graph, random):
    if not graph.initializer:
        return
    tensor = random.choice(graph.initializer)
    how = random.randrange(4)
    if how == 0:
        tensor.data_type = random.randrange(30)
    elif how == 1:
        tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) or 1)]
    elif how == 2:
        tensor.name = random.choice(("", "\x00", graph.input[0].name))
    else:
        tensor.raw_data = random.randbytes(len(tensor.raw_data))


_ONNX = (_attribute, _attribute, _node, _size, _weights)
