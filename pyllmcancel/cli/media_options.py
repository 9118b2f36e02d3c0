"""The options of ``pyllmcancel serve`` about where pictures and sounds come from, and their limits."""

from __future__ import annotations

import argparse
from pathlib import Path

from pyllmcancel.cli.options import add_option, add_switch, positive_int, seconds
from pyllmcancel.errors import UsageError
from pyllmcancel.server.media.settings import MediaSettings

MEDIA = MediaSettings()


def add_media_options(group: argparse._ArgumentGroup) -> None:
    text = "fetch pictures by http and https, from addresses of the public network only; without: data URLs only"
    add_switch(group, "media-url", MEDIA.urls, text)
    text = "folder whose pictures and sounds requests may name by file:// and a path below it [none]"
    add_option(group, "media-path", Path, None, text, metavar="DIR")
    text = "limit of pictures and sounds in a request"
    add_option(group, "media-max-items", positive_int, MEDIA.max_items, text)
    text = "size limit of one picture or sound, in MiB"
    add_option(group, "media-max-mib", positive_int, MEDIA.max_bytes >> 20, text, metavar="MIB")
    text = "limit of a picture's width times height; larger ones are refused before they are decoded"
    add_option(group, "media-max-pixels", positive_int, MEDIA.max_pixels, text)
    text = "limit of a sound's length"
    add_option(group, "media-max-seconds", seconds, MEDIA.max_seconds, text, metavar="S")
    text = "limit of what is prepared of pictures and sounds for live requests, in MiB; beyond it requests get 429"
    add_option(group, "media-prepared-mib", positive_int, MEDIA.max_prepared >> 20, text, metavar="MIB")
    text = "time limit for all that a request has fetched by --media-url"
    add_option(group, "media-timeout", seconds, MEDIA.fetch_timeout, text, metavar="S")


def media_settings(arguments: argparse.Namespace) -> MediaSettings:
    """Return the settings; UsageError if the folder is none."""
    path: Path | None = arguments.media_path
    if path is not None and not path.is_dir():
        raise UsageError(f"--media-path {path} is not a folder")
    return MediaSettings(
        urls=arguments.media_url,
        path=path,
        max_items=arguments.media_max_items,
        max_bytes=arguments.media_max_mib << 20,
        max_pixels=arguments.media_max_pixels,
        max_seconds=arguments.media_max_seconds,
        max_prepared=arguments.media_prepared_mib << 20,
        fetch_timeout=arguments.media_timeout,
    )
