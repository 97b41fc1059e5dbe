"""Images of the OpenStack image service, by two requests of its API v2: ``/v2/images/ID`` and ``/v2/images/ID/file``.

keystoneauth1 logs in, finds the service and verifies its certificate. It is imported only when ``[glance]`` is configured.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import requests
from oslo_config import cfg

from images.opts import AUTH_TYPE
from images.opts import GLANCE_GROUP as GROUP
from images.record import ImageRecord
from objects import errors, text, typed
from objects.base import Object
from objects.mask import mask_url
from service.config import Listing

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter
    from keystoneauth1.loading import BaseLoader
    from keystoneauth1.plugin import BaseAuthPlugin

TIMEOUT_S = 20
"""Default seconds without a byte after which a request has failed."""
CHUNK_SIZE = 128 << 10
"""Bytes read at once: little, because a slow service must not keep an agent from seeing that a build is cancelled."""
MISSING = "[glance] auth_type needs the Python package keystoneauth1: pip install 'superconductor-cloud[glance]'"
_NO_ENDPOINT = "No image service is in the catalog: check [glance], or name it in endpoint_override."
_LISTED_PLUGINS = ("password", "v3applicationcredential", "none")
_EVERYBODYS = ("public", "community")
_NOBODY = "-"
_HASHES = ("sha512", "sha256")


class _GlanceImage(Object, frozen=True, kw_only=True):
    """The fields of Glance's answer that we need. Each may be missing or null."""

    name: str | None = None
    status: str | None = None
    disk_format: str | None = None
    container_format: str | None = None
    size: int | None = None
    virtual_size: int | None = None
    os_hash_algo: str | None = None
    os_hash_value: str | None = None
    visibility: str | None = None
    owner: str | None = None
    min_disk: int | None = None
    min_ram: int | None = None
    created_at: str | None = None


_NO_PROPERTIES = {*_GlanceImage.__struct_fields__, "id", "checksum", "direct_url", "file", "locations", "protected"} | {
    "schema",
    "self",
    "stores",
    "tags",
    "updated_at",
}


class GlanceSource:
    """The image service behind this adapter, whose session has a timeout."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def get_record(self, image_id: str) -> ImageRecord:
        with self._open_answer(image_id, f"/v2/images/{text.file_name(image_id)}") as answer:
            content = answer.content
        try:
            document = typed.decode_json(content, dict[str, Any])
            return _parse_record(image_id, document)
        except msgspec.MsgspecError as error:
            raise errors.ServiceUnavailable(
                f"The image service says something about image {image_id[:80]} that cannot be read: {error}."
            ) from None

    def read_content(self, image_id: str) -> Generator[bytes, None, None]:
        with self._open_answer(image_id, f"/v2/images/{text.file_name(image_id)}/file") as answer:
            yield from answer.iter_content(CHUNK_SIZE)

    def _find_endpoint(self) -> str:
        endpoint = self._adapter.get_endpoint()
        if not endpoint:
            raise errors.ServiceUnavailable(_NO_ENDPOINT)
        return str(endpoint).rstrip("/").removesuffix("/v2")

    @contextmanager
    def _open_answer(self, image_id: str, path: str) -> Iterator[requests.Response]:
        """A successful answer, whose body is still to be read."""
        from keystoneauth1 import exceptions

        try:
            # Redirects are not followed: they would carry the token to another server. Nothing is logged: neither tokens nor disks.
            headers = {"Accept-Encoding": "identity"}
            answer = self._adapter.get(
                self._find_endpoint() + path, headers=headers, stream=True, raise_exc=False, redirect=False, log=False
            )
            with closing(answer):
                _check_status(answer, image_id)
                yield answer
        except (exceptions.Unauthorized, exceptions.Forbidden) as error:
            raise errors.Forbidden(f"The identity service refuses the login of [glance]: {_error_line(error)}.") from None
        except exceptions.EndpointNotFound:
            raise errors.ServiceUnavailable(_NO_ENDPOINT) from None
        except (exceptions.ClientException, requests.RequestException) as error:
            raise errors.ServiceUnavailable(f"The image service does not answer: {_error_line(error)}.") from None


def _check_status(answer: requests.Response, image_id: str) -> None:
    status = answer.status_code
    if status == requests.codes.not_found:
        raise errors.NotFound(f"Image {image_id[:80]} is not in the image service.")
    if status in (requests.codes.unauthorized, requests.codes.forbidden):
        raise errors.Forbidden(f"The image service refuses image {image_id[:80]} to the user of [glance], with status {status}.")
    if answer.is_redirect:
        raise errors.ServiceUnavailable("The image service sends agents to another address: name it in [glance] endpoint_override.")
    if status != requests.codes.ok:
        raise errors.ServiceUnavailable(f"The image service answers with status {status}.")


def _parse_record(image_id: str, document: dict[str, Any]) -> ImageRecord:
    """Raises errors.Invalid for an image that no host can use, and msgspec.MsgspecError."""
    image = typed.convert_data(document, _GlanceImage)
    if image.status != "active":
        raise errors.Invalid(f"Image {image_id[:80]} has the status {_quote_word(image.status)}: only active images can be used.")
    if image.disk_format not in ("raw", "qcow2"):
        raise errors.Invalid(
            f"Image {image_id[:80]} has the format {_quote_word(image.disk_format)}: only raw and qcow2 can be used."
        )
    if image.container_format not in (None, "bare"):
        raise errors.Invalid(
            f"Image {image_id[:80]} is in a container of format {_quote_word(image.container_format)}: only bare images can "
            "be used."
        )
    if image.os_hash_algo not in _HASHES or not image.os_hash_value:
        raise errors.Invalid(f"Image {image_id[:80]} has no hash of sha512 or sha256 (os_hash_value): upload it again.")
    plain = {
        "id": image_id,
        "name": text.one_line(image.name or "", text.NAME_LENGTH),
        "disk_format": image.disk_format,
        "size": image.size,
        "hash_algo": image.os_hash_algo,
        "hash_value": image.os_hash_value.lower(),
        "virtual_size": image.virtual_size or None,
        "min_disk": image.min_disk or 0,
        "min_ram": image.min_ram or 0,
        "properties": {key: value for key, value in document.items() if key not in _NO_PROPERTIES and isinstance(value, str)},
        "owner": "" if image.visibility in _EVERYBODYS else image.owner or _NOBODY,
        "created_at": image.created_at or "",
    }
    return typed.convert_data(plain, ImageRecord)


def _quote_word(value: str | None) -> str:
    return repr(text.one_line(value, 40)) if value else "none"


def _error_line(error: Exception) -> str:
    return text.one_line(mask_url(str(error)), 600).rstrip(".")


def open_glance(conf: cfg.ConfigOpts) -> GlanceSource:
    """The image service of ``[glance]``. Nothing is connected to yet. Raises errors.Misconfigured."""
    try:
        from keystoneauth1 import exceptions, loading
    except ImportError:
        raise errors.Misconfigured(MISSING) from None
    try:
        plugin: BaseLoader[BaseAuthPlugin] = loading.get_plugin_loader(conf[GROUP].auth_type)
        _register_missing(conf, loading.get_auth_plugin_conf_options(plugin))
        _register_missing(conf, _common_options())
        values = conf[GROUP]
        auth = plugin.load_from_options_getter(lambda option: values[option.dest])
        session = loading.load_session_from_conf_options(conf, GROUP, auth=auth, timeout=values.timeout or TIMEOUT_S)
        adapter = loading.load_adapter_from_conf_options(conf, GROUP, session=session, service_type=values.service_type or "image")
    except (exceptions.ClientException, cfg.Error, ValueError, TypeError) as error:
        raise errors.Misconfigured(f"[glance]: {_error_line(error)}") from None
    return GlanceSource(adapter)


def list_opts() -> Listing:
    """All options of the group, for displaying the configuration; only ours if keystoneauth1 is not installed."""
    options: dict[str, cfg.Opt] = {}
    try:
        from keystoneauth1 import loading
    except ImportError:
        pass
    else:
        plugins = [option for name in _LISTED_PLUGINS for option in loading.get_auth_plugin_conf_options(name)]
        for option in map(copy.copy, [*plugins, *_common_options()]):
            option.required = False  # it depends on the plug-in
            options[option.dest] = option
    return [(GROUP, [*options.values(), AUTH_TYPE])]


def _common_options() -> list[cfg.Opt]:
    from keystoneauth1 import loading

    return [*loading.get_session_conf_options(), *loading.get_adapter_conf_options()]


def _register_missing(conf: cfg.ConfigOpts, options: list[cfg.Opt]) -> None:
    """Register options that are not registered yet, as by a plug-in of the same names or by ``config check``."""
    for option in options:
        if option.dest not in conf[GROUP]:
            conf.register_opt(option, group=GROUP)
