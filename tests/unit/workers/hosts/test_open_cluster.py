"""Ray's own defaults that leave a cluster open."""

from __future__ import annotations

from rftd.workers.hosts.ray.open_cluster import open_defaults


def test_defaults_of_ray_that_leave_a_cluster_open_are_told() -> None:
    def subjects(address: str = "auto", **environ: str) -> list[str]:
        return [default.subject for default in open_defaults(environ, address)]

    assert subjects() == subjects("10.0.0.1:6379") == ["authentication", "usage reports"]
    assert subjects(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0") == []
    assert subjects(RAY_AUTH_TOKEN="t", RAY_USAGE_STATS_ENABLED="1") == ["usage reports"]
    assert subjects(RAY_AUTH_TOKEN="t", RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0") == ["authentication"]
    assert subjects("local") == [], "the driver starts that one with both"


def test_a_token_is_never_told() -> None:
    for default in open_defaults({"RAY_AUTH_TOKEN": "secret", "RAY_AUTH_MODE": "disabled"}, "auto"):
        assert "secret" not in f"{default}"
