"""Section `service`: services beside the experiment."""

from __future__ import annotations

from rftd.daemon.config.schema.section import Natural, Section, Url


class DataJuicer(Section):
    """`service.data_juicer`."""

    server_url: Url = None
    auto_start: bool = False
    port: Natural | None = None


class Service(Section):
    """`service`."""

    data_juicer: DataJuicer | None = None
