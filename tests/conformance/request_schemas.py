"""Request bodies that Nova's schemas allow and ours refuse: where ours are narrower, and where they are meant to be."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from api.http.microversions import MAXIMUM
from api.http.validation import Validator
from tests.conformance.exchange import Route, Version

Document = dict[str, Any]


class Refusal(NamedTuple):
    """A place in a body where our schema is narrower. ``rule``: the keyword of the schema that refuses, such as ``maxLength``."""

    route: Route
    place: str
    rule: str

    def __str__(self) -> str:
        return f"{self.route}: {self.place or 'body'} ({self.rule})"


_CREATE = r"POST /servers: server\."
_DEVICE = rf"{_CREATE}block_device_mapping_v2\.\[\]\."
WANTED: tuple[tuple[str, str], ...] = (
    (r"(max_server_per_host|_count|rotation|length|boot_index) \((maximum|pattern)\)", "numbers have nine digits, or 32 bits"),
    (r"(user_id|adminPass|flavorRef|backup_type|availability_zone|SecurityGroup.name|host) \(maxLength\)", "texts are bounded"),
    (r"scheduler_hints\.(same_host|different_cell)(\.\[\])? \(maxLength\)", "texts are bounded"),
    (r"(name|key_name|availability_zone) \(format\)", "no name ends with white space, so none can be meant"),
    (r"unshelve\.(host|availability_zone) \((minLength|pattern)\)", "no host or zone has such a name"),
    (r"(public_key|user_id) \(minLength\)", "Nova refuses an empty one too, after its schema"),
    (r"adminPass \(minLength\)", "a guest without a password is open to everybody"),
    (r"(tags?(\.\[\])?|keypair\.name|flavor\.id) \(pattern\)", "a path cannot hold '.', '..' or a backslash"),
    (r"(contents|user_data) \(format\)", "Nova skips what is not base64, so the guest would get other bytes"),
    (r"personality\.\[\](\.path)? \((required|minLength)\)", "a file needs a path and contents"),
    (r"trusted_image_certificates \(type\)", "signatures of images are not checked, so certificates are refused"),
    (rf"{_CREATE}networks\.\[\]\.uuid \(format\)", "Nova refuses it too, after its schema"),
    (rf"{_CREATE}block_device_mapping \(", "volumes are not served"),
    (rf"{_CREATE}block_device_mapping_v2\.\[\] \(required\)", "Nova refuses a device without a source too, after its schema"),
    (rf"{_DEVICE}(source_type|destination_type|volume_type|volume_id|snapshot_id|connection_info) ", "volumes are not served"),
    (rf"{_DEVICE}(image_id|virtual_name|no_device) ", "old names, and devices of images, which have none"),
)
"""Refusals that are meant, as expressions for their texts, each with the reason."""


def describe_places(places: Mapping[Refusal, list[tuple[Version, Any]]], *, complete: bool) -> Iterator[str]:
    """A line for each place that is not wanted. ``complete``: of all routes; then also one for each reason that no place needs."""
    used = set()
    for refusal, examples in sorted(places.items()):
        reasons = [expression for expression, _ in WANTED if re.search(expression, str(refusal))]
        used |= set(reasons)
        if not reasons:
            version, value = examples[0]
            yield f"{refusal}: Nova allows {json.dumps(value)[:80]} in {version[0]}.{version[1]}"
    if complete:
        unused = [expression for expression, _ in WANTED if expression not in used]
        yield from (f"nothing is refused any more as {expression!r} in WANTED" for expression in unused)


def allowed_bodies(python: str, contract: str) -> Iterator[tuple[Route, Version, Any]]:
    """What the Nova of this interpreter allows."""
    command = [python, "-W", "ignore", contract, "bodies"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            body = json.loads(line)
            yield Route(body["method"], body["path"], body["action"]), tuple(body["version"]), body["body"]
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


def narrower_places(
    bodies: Iterable[tuple[Route, Version, Any]], describe: Callable[[Version], Document]
) -> Mapping[Refusal, list[tuple[Version, Any]]]:
    """Where the schemas of ``describe``, our description of a version, refuse these bodies; with the versions and values."""
    schemas: dict[tuple[Route, Version], Validator | None] = {}
    documents: dict[Version, Document] = {}
    places = defaultdict[Refusal, list[tuple[Version, Any]]](list)
    for route, version, body in bodies:
        if version > MAXIMUM:
            continue
        if (route, version) not in schemas:
            if version not in documents:
                documents[version] = describe(version)
            schema = _schema_of(documents[version], route)
            schemas[route, version] = None if schema is None else Validator(schema)
        validator = schemas[route, version]
        for error in validator.list_errors(body) if validator is not None else ():
            places[Refusal(route, _place(error), str(error.validator))].append((version, error.instance))
    return places


def _schema_of(document: Document, route: Route) -> Document | None:
    """Our schema of the body of this route; None: it is not served, or reads no body."""
    for path, operations in document["paths"].items():
        if re.sub(r"\{[^}]*\}", "{}", path) == f"/v2.1{route.path}":
            content = operations.get(route.method.lower(), {}).get("requestBody", {}).get("content", {})
            schema: Document | None = content.get("application/json", {}).get("schema")
            if schema is None or not route.action:
                return schema
            branches = schema.get("anyOf", [schema])
            return next((branch for branch in branches if branch.get("required") == [route.action]), None)
    return None


def _place(error: Any) -> str:
    place = ".".join("[]" if isinstance(part, int) else part for part in error.absolute_path)
    if error.validator == "additionalProperties":
        unknown = sorted(name for name in error.instance if name not in error.schema.get("properties", {}))
        return f"{place}.{unknown[0]}".lstrip(".") if unknown else place
    return place
