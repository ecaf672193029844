# SPDX-License-Identifier: Apache-2.0
"""`KnownDevice`: a device that ``devices.toml`` gives a name, and how that file is read."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from nni_latency.devices._shell_facts import parse_cores
from nni_latency.documents import StrictDocument, explain
from nni_latency.errors import FileFormatError
from nni_latency.files import user_folder


def _check_name(name: str) -> str:
    if name in ("cpu", "cuda") or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None:
        raise ValueError("no name of a device")
    return name


def _parse_cores(value: Any) -> Any:
    return (parse_cores(value) if value else ()) if isinstance(value, str) else value


#: A name: nothing that could be a path, an address, or a device of this machine.
_Name = Annotated[str, AfterValidator(_check_name)]


class KnownDevice(StrictDocument):
    """A device of ``devices.toml``. Immutable.

    Examples
    --------
    >>> KnownDevice.model_validate({"connection": "ssh:pi@raspberrypi", "cores": "0-3,6"}).cores
    (0, 1, 2, 3, 6)
    """

    model_config = ConfigDict(frozen=True)

    connection: str = Field(min_length=1, description="how it is reached, such as ssh:pi@raspberrypi")
    python: str = Field("", description="its Python; empty for the one of the connection")
    cores: Annotated[tuple[int, ...], BeforeValidator(_parse_cores)] = Field(
        (), description="cores that networks run on, such as 0-3,6; none for the last ones"
    )


_DEVICES = TypeAdapter(dict[_Name, KnownDevice])


def devices_file() -> Path:
    """Return where names of devices stand: ``$XDG_CONFIG_HOME`` or ``~/.config``, ``nni_latency/devices.toml``."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "devices.toml"


def read_devices(path: Path | None = None) -> Mapping[str, KnownDevice]:
    """Return the devices of a file by name.

    A device is a text, as in ``pi = "ssh:pi@raspberrypi"``, or a table ``[pi]`` with ``connection`` and, if need be,
    ``python`` and ``cores``.

    Parameters
    ----------
    path : Path, optional
        The file; `devices_file` without it. There are no devices if it does not exist.

    Raises
    ------
    FileFormatError
        If it cannot be read, is no TOML, or does not describe devices; the message names the line or the key.
    """
    file = devices_file() if path is None else path
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return MappingProxyType({})
    except OSError as error:
        raise FileFormatError(f"Cannot read the list of devices {str(file)!r}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"Cannot read the list of devices {str(file)!r}: it is not text.") from error
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(
            f"The list of devices {str(file)!r} is not TOML: {error}. "
            'A device is a line such as pi = "ssh:pi@raspberrypi"'
        ) from error
    tables = {name: _table(value) for name, value in content.items()}
    try:
        return MappingProxyType(_DEVICES.validate_python(tables))
    except ValidationError as error:
        raise FileFormatError(f"The list of devices {str(file)!r} is not valid: {_reason(error)}") from error


def _table(value: Any) -> Any:
    return {"connection": value} if isinstance(value, str) else value


def _reason(error: ValidationError) -> str:
    """Explain the first fault, in the words of the file."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["loc"][-1] == "[key]":
        return f"{place!r} cannot be the name of a device: letters, digits, '_', '.' and '-', and not cpu or cuda."
    if len(first["loc"]) == 1:
        return f'{place} must be a connection such as "ssh:pi@raspberrypi", or a table. Got {first["input"]!r}.'
    if first["type"] == "extra_forbidden":
        return f"{place}: there is no such setting. A device has {', '.join(KnownDevice.model_fields)}."
    if first["type"] == "missing":
        return f'{place} is missing: how the device is reached, such as "ssh:pi@raspberrypi".'
    if first["loc"][-1] == "cores":
        return f'{place} must be numbers and ranges such as "0-3" or "4,6". Got {first["input"]!r}.'
    return explain(error)
