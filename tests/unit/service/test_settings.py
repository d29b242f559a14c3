"""Settings come from flags and the environment; an invalid one is named with the reason."""

import json
from pathlib import Path

import pytest

from service.domain.grants import matching, parse_grants, scopes_of
from service.domain.scopes import Scope
from service.errors import ConfigurationError
from service.settings import Settings, load_settings, variable_name


@pytest.fixture(autouse=True)
def _only_our_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(variable_name(name), raising=False)


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_the_environment_is_read_and_a_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_PORT", "9000")
    monkeypatch.setenv("LETHE_LOG_FORMAT", "json")
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@h/d")

    settings = load_settings(port=9001, log_format=None)

    assert (settings.port, settings.log_format, settings.database_url) == (9001, "json", "postgresql://u:p@h/d")


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_PORT", "")
    monkeypatch.setenv("REDIS_URL", "")

    assert (load_settings().port, load_settings().redis_url) == (8000, None)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LETHE_PORT", "70000", "LETHE_PORT: must be at most 65535, not '70000'."),
        ("LETHE_PORT", "tcp://10.0.0.1:80", "LETHE_PORT: must be a whole number"),
        ("LETHE_DEVICE", "tpu", "LETHE_DEVICE: must be 'auto', 'cpu' or 'cuda', not 'tpu'."),
        ("LETHE_MAX_BATCH_NODES", "0", "LETHE_MAX_BATCH_NODES: must be at least 1, not '0'."),
        ("LETHE_MAX_NODES_PER_REQUEST", "100001", "LETHE_MAX_NODES_PER_REQUEST: must be at most 100000, not '100001'."),
        ("LETHE_LEASE_TTL_S", "nan", "LETHE_LEASE_TTL_S: must be"),
        ("LETHE_REPAIR_TOLERANCE", "1e-5", "and 1e-06 (weights farther away are not those of retraining), not"),
        ("LETHE_REPAIR_TOLERANCE", "1e-10", "must be between 1e-09 (rounding prevents smaller bounds) and"),
        ("LETHE_REPAIR_TOLERANCE", "0", "LETHE_REPAIR_TOLERANCE: must be between 1e-09 (rounding"),
        ("LETHE_REPAIR_TOLERANCE", "nan", "LETHE_REPAIR_TOLERANCE: must be between 1e-09 (rounding"),
        ("LETHE_REPAIR_TOLERANCE", "tight", "LETHE_REPAIR_TOLERANCE: must be between 1e-09 (rounding"),
        ("LETHE_FACTOR_AGE", "-1", "LETHE_FACTOR_AGE: must be at least 0, not '-1'."),
        ("LETHE_FACTOR_AGE", "3601", "LETHE_FACTOR_AGE: must be at most 3600, not '3601'."),
        ("LETHE_ORGANISATION", "a\u202eb", "LETHE_ORGANISATION: must not contain U+202E"),
        ("LETHE_ADMIN_KEY", "short", "LETHE_ADMIN_KEY: must have 8 to 256 characters."),
        ("DATABASE_URL", "mysql://u:p@h/d", "DATABASE_URL: must start with postgresql://"),
        ("REDIS_URL", "http://h", "REDIS_URL: must start with redis://"),
    ],
)
def test_a_bad_value_is_named_with_what_was_wrong(
    variable: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigurationError) as caught:
        load_settings()

    assert said in caught.value.detail


def test_all_bad_values_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_PORT", "x")
    monkeypatch.setenv("LETHE_MAX_WAIT_MS", "1.5")

    with pytest.raises(ConfigurationError) as caught:
        load_settings(device="tpu", nonsense=1)

    for name in ("LETHE_PORT", "LETHE_MAX_WAIT_MS", "--device (LETHE_DEVICE)", "nonsense: unknown setting"):
        assert name in caught.value.detail


@pytest.mark.parametrize(
    ("variable", "value"), [("LETHE_ADMIN_KEY", "hunter2"), ("DATABASE_URL", "mysql://u:hunter2@h")]
)
def test_a_refused_secret_is_not_repeated(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigurationError) as caught:
        load_settings()

    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETHE_ADMIN_KEY", "correct horse")
    settings = load_settings(database_url="postgresql://u:hunter2@h/d", redis_url="redis://:hunter2@h/0")

    assert "hunter2" not in repr(settings)
    assert "correct horse" not in repr(settings)


def test_folders_stay_where_they_were_meant_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(model=Path("m"))
    monkeypatch.chdir("/")

    assert settings.home == tmp_path / "var"
    assert settings.model_dir == tmp_path / "m"
    assert load_settings(home=tmp_path / "x").model_dir == tmp_path / "x" / "model"


def test_trusted_proxies_are_addresses_and_networks() -> None:
    settings = load_settings(trusted_proxies="10.0.0.0/8, 192.0.2.7,fd00::/8")

    assert [str(network) for network in settings.proxies] == ["10.0.0.0/8", "192.0.2.7/32", "fd00::/8"]
    assert load_settings().proxies == ()
    for wrong in ("proxy.example", "*", "10.0.0.1/8"):
        with pytest.raises(ConfigurationError, match=r"--trusted-proxies \(LETHE_TRUSTED_PROXIES\)"):
            load_settings(trusted_proxies=wrong)


GRANTS = '{"groups": {"privacy-team": ["audit:read"]}}'
ISSUER = {"oidc_issuer": "https://login.example", "oidc_audience": "lethe", "oidc_grants": GRANTS}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"oidc_issuer": None}, "requires oidc_issuer"),
        ({"oidc_issuer": "http://login.example"}, "must be an https address"),
        ({"oidc_grants": None}, "requires oidc_grants"),
        ({"oidc_grants": "groups=audit:read"}, "must be a JSON object"),
        ({"oidc_grants": '{"groups": {"a": ["audit:reed"]}}'}, "unknown scope 'audit:reed'"),
        ({"oidc_audience": None}, "requires oidc_audience, oidc_client_id, or both"),
        ({"oidc_client_id": "dashboard"}, "requires public_url"),
        ({"oidc_client_id": "lethe", "public_url": "https://lethe.example"}, "must differ"),
        ({"oidc_client_secret": "s3cret"}, "requires oidc_client_id"),
        ({"oidc_login_scope": "profile"}, "LETHE_OIDC_LOGIN_SCOPE"),
    ],
)
def test_an_issuer_is_configured_whole_or_not_at_all(changed: dict[str, str | None], said: str) -> None:
    load_settings(**ISSUER)
    with pytest.raises(ConfigurationError) as refused:
        load_settings(**ISSUER | changed)
    assert said in refused.value.detail
    assert "s3cret" not in refused.value.detail


def test_a_combination_that_cannot_work_is_named() -> None:
    with pytest.raises(ConfigurationError, match="certify requires repair=always"):
        load_settings(certify="1,1e-4", repair="never")


def test_a_token_has_the_scopes_of_every_row_that_it_matches() -> None:
    table = {
        "groups": {"a": [Scope.AUDIT_READ], "b": [Scope.GRAPH_WRITE]},
        "scp": {"x": [Scope.DELETIONS_READ]},
        "email": {"dpo@example.org": [Scope.DELETIONS_WRITE]},
        "realm_access.roles": {"r": [Scope.PREDICTIONS_READ]},
        "https://lethe.example/roles": {"r": [Scope.PREDICTIONS_ALL]},
    }
    grants = parse_grants(json.dumps(table))
    for claims, scopes in (
        ({"groups": ["a", "b", 3], "scp": "w x"}, {Scope.AUDIT_READ, Scope.GRAPH_WRITE, Scope.DELETIONS_READ}),
        ({"groups": "a b", "scp": ["x"]}, {Scope.DELETIONS_READ}),
        ({"email": "dpo@example.org"}, set()),
        ({"email": "dpo@example.org", "email_verified": "true"}, set()),
        ({"email": "dpo@example.org", "email_verified": True}, {Scope.DELETIONS_WRITE}),
        ({"realm_access": {"roles": ["r"]}, "groups": {"a": 1}}, {Scope.PREDICTIONS_READ}),
        ({"https://lethe.example/roles": ["r"], "realm_access": "roles"}, {Scope.PREDICTIONS_ALL}),
    ):
        assert scopes_of(matching(grants, claims)) == scopes, claims
